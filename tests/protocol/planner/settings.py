"""Settings that several tests of the planner predict."""

from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology
from protocol.planner.compute import Compute
from protocol.planner.links import IDEAL, Calibration, HomeLine, Network
from protocol.planner.methods import METHOD_NAMES, MethodTraffic, Setting, predicted

PASS = Compute(1.0, 2.0, 0.25, 0.125, 0.125)
TRAFFIC = MethodTraffic(gradient=1e9, payload=1e6, parameters=5e8, local_steps=10)
FAST_BIT_S = 1e18


def lines(count: int, up_bit_s: float = 2e7, down_bit_s: float = 2e8) -> list[HomeLine]:
    return [HomeLine(f"node-{node}", up_bit_s, down_bit_s, 0.02) for node in range(count)]


def setting(
    count: int,
    compute: Compute = PASS,
    *,
    up_bit_s: float = 2e7,
    traffic: MethodTraffic = TRAFFIC,
    calibration: Calibration = IDEAL,
) -> Setting:
    return Setting(compute, Network(lines(count, up_bit_s)), traffic, calibration)


def instant(count: int, jitter: float) -> Setting:
    """Nodes of compute 1 whose exchanges take no time."""
    network = Network([HomeLine(f"{node}", FAST_BIT_S, FAST_BIT_S) for node in range(count)])
    return Setting(Compute(1 / 3, 2 / 3, jitter=jitter), network, TRAFFIC, IDEAL)


def seconds(one: Setting) -> dict[str, float]:
    """Seconds of every method and topology."""
    found = {name: predicted(one, name).seconds for name in METHOD_NAMES if name != "gossip-adam"}
    return found | {
        name: predicted(one, "gossip-adam", Topology(name)).seconds for name in TOPOLOGY_NAMES
    }
