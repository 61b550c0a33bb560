"""A plan says whether decentralisation pays, and what to change, with numbers that it predicted."""

import numpy as np
import pytest

from protocol.codec.payload import PayloadShape
from protocol.planner.advice import bytes_text, rate_text, seconds_text, sentences
from protocol.planner.changes import largest_hidden_k, without_the_slowest
from protocol.planner.compute import Compute
from protocol.planner.links import MEASURED, HomeLine, Network, exchange_s
from protocol.planner.methods import MethodTraffic, Setting, predicted
from protocol.planner.payload_bytes import votes_bytes
from protocol.planner.plan import DAY_S, plan
from protocol.runfile import AlgorithmSpec, MembershipSpec, RoundsSpec, RunSpec

SHAPE = PayloadShape(5000, 32, 1)
SPEC = RunSpec(algorithm=AlgorithmSpec(name="local_steps", top_k=32))
OVERLAPPING = SPEC.model_copy(update={"rounds": RoundsSpec(overlap=1)})
MIXING = RunSpec(
    algorithm=AlgorithmSpec(name="gossip-adam"),
    rounds=RoundsSpec(overlap=1),
    membership=MembershipSpec(members_max=64),
)
TRAFFIC = MethodTraffic(4e7, votes_bytes(SHAPE), 4e7)


def homes(*up_mbit_s: float, compute: Compute | None = None) -> Setting:
    lines = [
        HomeLine(f"node-{node}", rate * 1e6, 10 * rate * 1e6, 0.025)
        for node, rate in enumerate(up_mbit_s)
    ]
    return Setting(compute or Compute(0.7, 1.3), Network(lines), TRAFFIC, MEASURED)


def words(setting: Setting, spec: RunSpec = SPEC) -> str:
    return "\n".join(sentences(plan(spec, setting), SHAPE))


def test_on_home_lines_decentralisation_pays_and_by_how_much() -> None:
    found = plan(SPEC, homes(*[20.0] * 8))
    ratio = found.baseline.seconds / found.best.seconds
    text = words(homes(*[20.0] * 8))
    assert found.best.method == "demo-overlap"
    assert ratio > 10
    assert f"{ratio:.3g} times less than all-reduce" in text
    assert "Decentralisation pays" in text


def test_on_fast_lines_it_does_not() -> None:
    assert "does not pay" in words(homes(*[1e6] * 4, compute=Compute(10.0, 20.0)))


def test_one_node_has_nothing_to_exchange() -> None:
    assert words(homes(20.0)).startswith("One node exchanges nothing")


def test_the_largest_hidden_k_hides_and_the_next_does_not() -> None:
    setting = homes(*[20.0] * 8)
    top_k = largest_hidden_k(setting, SHAPE)
    assert top_k is not None

    def exchange(k: int) -> float:
        size = votes_bytes(PayloadShape(SHAPE.chunks, k, 1))
        return exchange_s(setting.network, size, setting.calibration)

    assert exchange(top_k) <= setting.compute.demo_s < exchange(top_k + 1)
    assert f"k up to {top_k} costs no time" in words(setting)
    thin = homes(*[0.01] * 8)
    assert largest_hidden_k(thin, SHAPE) is None


def test_nodes_that_hold_up_the_others_are_named() -> None:
    setting = homes(*[20.0] * 6, 0.1, 0.1)
    before = predicted(setting, "demo-overlap")
    found = without_the_slowest(setting, before)
    assert found is not None
    assert found.nodes == (6, 7)
    assert found.work == pytest.approx(before.seconds / found.seconds * 6 / 8)
    assert "Slowest: without node-6, node-7 a round takes" in words(setting, OVERLAPPING)
    assert "Slowest" not in words(homes(*[20.0] * 8))


def test_a_slow_machine_is_named_too() -> None:
    setting = homes(*[1e4] * 4, compute=Compute(10.0, 20.0, slower=(1.0, 5.0, 1.0, 1.0)))
    assert "Slowest: without node-1" in words(setting)


def test_the_whole_run_and_the_bytes_of_a_day_are_those_of_its_own_method() -> None:
    setting = homes(*[20.0] * 8)
    for spec, own in ((SPEC, "demo"), (OVERLAPPING, "demo-overlap"), (MIXING, "gossip-adam")):
        found = plan(spec, setting)
        assert found.own.method == own
        assert found.length_s == spec.schedule.steps * found.own.seconds
        assert found.day_bytes(found.own) == found.own.up_bytes * DAY_S / found.own.seconds
        assert f"{spec.schedule.steps:,} steps of this run" in words(setting, spec)


def test_who_counts_bytes_is_told_the_lightest_method() -> None:
    setting = homes(*[20.0] * 8)
    assert "Bytes:" not in words(setting)
    text = words(setting, MIXING)
    assert "Bytes: a round of demo sends the fewest, 1.3" in text
    assert "one of this run sends 40 MB" in text


def test_a_run_that_mixes_is_told_which_topology_mixes_best_of_the_quick_ones() -> None:
    group = np.arange(8) % 2
    far = np.where(group[:, None] == group, 0.001, 2.0)
    lines = [HomeLine(f"node-{node}", 1e9, 1e9) for node in range(8)]
    setting = Setting(Compute(0.1, 0.2), Network(lines, between_s=far), TRAFFIC, MEASURED)
    found = plan(MIXING, setting)
    times = {one.topology: one.seconds for one in found.predictions if one.topology}
    assert times["hierarchical"] < times["random-matching"]
    text = words(setting, MIXING)
    assert "Topology: of the 2 quickest, at 5.9 s a round, one-peer-exponential mixes best" in text
    assert "Topology" not in words(setting)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (seconds_text(0), "0 s"),
        (seconds_text(0.01234), "12.3 ms"),
        (seconds_text(999.6), "16.7 min"),
        (seconds_text(7.3e6), "84.5 d"),
        (bytes_text(999.9), "1 kB"),
        (bytes_text(1.53e8), "153 MB"),
        (rate_text(4e5), "400 kbit/s"),
        (rate_text(2e7), "20 Mbit/s"),
    ],
)
def test_numbers_are_short(found: str, text: str) -> None:
    assert found == text
