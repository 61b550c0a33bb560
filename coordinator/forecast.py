"""How long a round should take by the planner's functions, beside how long rounds take.

The members' measured speeds and rates go into the same functions as those of `lockstep plan`. Rates
were measured from announcement to receipt, so round trips are in them. The forecast leaves out the
arithmetic beside the passes and the variation of compute. So a round takes longer than predicted,
and where it takes much longer a reason is named.
"""

from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

from coordinator.machine.machine import RunMachine
from coordinator.machine.rules.pacing import samples_per_share
from coordinator.machine.state.member import Member
from protocol.errors import SettingsError
from protocol.ids import PeerId
from protocol.mixing.topologies import Topology, TopologyName
from protocol.planner.compute import pass_of
from protocol.planner.links import IDEAL, HomeLine, Network
from protocol.planner.methods import MethodName, MethodTraffic, Setting, own_method, predicted
from protocol.planner.parameters import size_of
from protocol.planner.sums import exchanged_bytes

MEMBERS_MAX: Final = 64
"""Members for which a prediction is made: it is made anew with each commit."""

PARTS: Final = 1.25
"""Measured and predicted time part when one is this many times the other."""

PASS_S_MIN: Final = 1e-4
PASS_S_MAX: Final = 1e4
"""Bounds of the seconds of a member's passes that are believed: what it says of its speed may be
anything."""

SLOT_PART: Final = 0.9
"""Rounds that take this part of their slot end by the clock."""


def forecast(rounds: RunMachine) -> dict[str, Any]:
    """Fields of `pace`: predicted and measured seconds from one decision to the next, None while
    unknown, and both in words.
    """
    milliseconds = rounds.state.period.milliseconds
    measured_s = milliseconds / 1000 if milliseconds else None
    ready = rounds.members.ready()
    known = [member for member in ready if member.work.speed and member.work.up_bit_s]
    expected_s = _predicted_s(rounds, known) if len(known) == len(ready) else None
    return {
        "predicted": None if expected_s is None else round(expected_s, 3),
        "measured": measured_s,
        "round": _words(rounds, ready, measured_s, expected_s),
    }


def _words(
    rounds: RunMachine, ready: list[Member], measured_s: float | None, expected_s: float | None
) -> str:
    if measured_s is None:
        return ""
    if not expected_s:
        return f"rounds take {measured_s:.2g} s"
    both = f"rounds take {measured_s:.2g} s, predicted {expected_s:.2g} s"
    if measured_s > PARTS * expected_s:
        return f"{both}: {_why_longer(rounds, ready, measured_s)}"
    if expected_s > PARTS * measured_s:
        return f"{both}: lines or members are faster than they were measured"
    return both


def _why_longer(rounds: RunMachine, ready: list[Member], measured_s: float) -> str:
    late = [member.name or member.peer[:8] for member in ready if member.strikes]
    if late:
        return f"late members are {', '.join(sorted(late)[:4])}"
    slot = rounds.state.pace.slot
    exposed_ms = 0 if rounds.spec.rounds.hides else slot.exchange_ms
    if 1000 * measured_s > SLOT_PART * (slot.compute_ms + slot.publish_ms + exposed_ms):
        return "rounds last until their deadlines, because a member or a payload is missing"
    return "work beside the passes, or members and lines that vary, take the rest"


def _predicted_s(rounds: RunMachine, members: list[Member]) -> float | None:
    """Seconds of the next round; None where no prediction is made."""
    spec, state = rounds.spec, rounds.state
    hides = spec.rounds.hides
    if not 1 < len(members) <= MEMBERS_MAX or not (spec.algorithm.facts.replicas_equal or hides):
        return None
    speeds = {member.peer: (member.work.speed, member.strikes) for member in members}
    samples = samples_per_share(speeds, spec.rounds, state.pace.slot.compute_ms)
    return _round_s(
        tuple((1000 * samples[peer] / speed, peer) for peer, (speed, _) in speeds.items()),
        tuple(member.work.up_bit_s for member in members),
        _exchanged_bytes(rounds, len(members)),
        own_method(spec),
        spec.algorithm.mixing.topology,
    )


def _exchanged_bytes(rounds: RunMachine, members: int) -> tuple[float, float]:
    """Bytes of a payload, and of the results where summers add: by arithmetic, or as they were
    where that knows no such model, of which no round has summers.
    """
    spec, totals = rounds.spec, rounds.state.totals
    try:
        return exchanged_bytes(spec, size_of(spec.model), members)
    except SettingsError:
        return totals.payload_bytes / max(1, totals.payloads), 0.0


@lru_cache(maxsize=16)
def _round_s(
    compute: tuple[tuple[float, PeerId], ...],
    up_bit_s: tuple[int, ...],
    exchanged: tuple[float, float],
    method: MethodName,
    topology: TopologyName,
) -> float:
    """Seconds of a round; `compute`: seconds and id of each member, in the order of `up_bit_s`;
    `exchanged`: bytes of a payload and of the results.
    """
    sent_bytes, results_bytes = exchanged
    passes_s = [min(PASS_S_MAX, max(PASS_S_MIN, seconds)) for seconds, _ in compute]
    least_s = min(passes_s)
    down_bit_s = max(up_bit_s)
    lines = [
        HomeLine(peer, rate, down_bit_s) for (_, peer), rate in zip(compute, up_bit_s, strict=True)
    ]
    setting = Setting(
        replace(pass_of(least_s), slower=tuple(seconds / least_s for seconds in passes_s)),
        Network(lines),
        MethodTraffic(
            gradient=0.0, payload=sent_bytes, parameters=sent_bytes, results=results_bytes
        ),
        IDEAL,
    )
    return predicted(setting, method, Topology(topology)).seconds
