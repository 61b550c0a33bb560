"""Whether a machine is fast enough for a run, and when its work will count, in words: for the
question at a first join and for `lockstep doctor`. Pure; the times are measured by
`node.rehearsal`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from coordinator.machine.state.standing import COUNTED_ROUNDS
from lockstep.console import bytes_text
from protocol.planner.parameters import Size
from protocol.planner.payload_bytes import payload_bytes
from protocol.planner.sums import SUMMERS, round_bytes
from protocol.runfile import RunSpec
from protocol.words import quantity


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something will do."""

    holds: bool
    words: str
    remedy: str = ""
    """Advice; empty where nothing has to be done."""


def judge_bell(
    pass_s: float, round_s: float, samples: int, spec: RunSpec, duty_cycle: int = 100
) -> Verdict:
    """Whether a round with one pass of `samples` ends before its payload must be out. `pass_s` is
    the time of the pass, `round_s` that of all the work; `duty_cycle` is in percent.
    """
    bell_s = spec.rounds.compute_ms / 1000
    latest_s = bell_s + spec.rounds.publish_ms / 1000
    number = quantity(samples, "sample")
    took = f"{number} {'take' if samples > 1 else 'takes'} {round_s:.2g} s here"
    if round_s > latest_s:
        words = f"too slow: {took}, and a round wants the result after {latest_s:g} s"
        fewer = "fewer samples in a pass (--micro-batch 1), " if samples > 1 else ""
        return Verdict(False, words, f"{fewer}more --threads, or a GPU")
    paid_s = pass_s * 100 / duty_cycle
    passes = max(1, int((bell_s - (round_s - pass_s)) / max(paid_s, 1e-6)))
    share = min(passes * samples, spec.rounds.batch_samples_max)
    if round_s * 100 / duty_cycle > latest_s:
        words = (
            f"fast enough, with {duty_cycle} % of the time not in every round: each gives you "
            f"{bell_s:g} s; {took}"
        )
        return Verdict(True, words)
    given = f"fast enough: each round gives you {bell_s:g} s"
    if round_s > bell_s:
        given = f"just fast enough: a round waits {latest_s:g} s for you"
    return Verdict(True, f"{given}; {took}: up to {quantity(share, 'sample')} a round")


def counted_words(spec: RunSpec, status: Mapping[str, Any], size: Size | None) -> str:
    """When the work of a node that joins now will count, if it makes the bell. `status` is the
    coordinator's document, empty where it could not be had; `size` is that of the model.
    """
    if not status:
        return "not known: the coordinator did not tell how the run stands"
    if status.get("finished"):
        return "never: this run has all its steps; join another one"
    steps = status.get("steps")
    committed = _number(steps.get("committed") if isinstance(steps, Mapping) else 0)
    before = ""
    if committed:
        state = f" ({bytes_text(4 * size.parameters)})" if size else ""
        missed = "the step" if committed == 1 else f"the {committed:,.0f} steps"
        before = f"; before that it catches up on {missed} so far, by a snapshot{state} if many"
    word = str(status.get("phase", ""))
    if word in ("waiting", "paused"):
        words = f"in the first round that opens; now: {status.get('reason')}"
    else:
        round = _number(status.get("round")) + 1
        words = f"from round {round:.0f} on at the earliest, in some {_paced_s(spec, status):.2g} s"
    if spec.membership.trust == "public":
        words += (
            "; for every two established members one newcomer's work is used; after "
            f"{COUNTED_ROUNDS} rounds yours always counts"
        )
    return words + before


def limit_trouble(
    spec: RunSpec, size: Size, *, upload: int = 0, download: int = 0, members: int = 2
) -> str:
    """Why limits in bytes per second, 0 for none, are too low for a run with this number of
    members, in words; empty where they will do.
    """
    copies = SUMMERS if 0 < spec.rounds.sums <= members else 1
    payload = copies * payload_bytes(spec.algorithm, size)
    exchange_s = (spec.rounds.publish_ms + spec.rounds.exchange_ms) / 1000
    if upload and upload * exchange_s < payload:
        least = math.ceil(payload / exchange_s)
        return (
            f"--upload-limit {upload} is too low: one payload of {bytes_text(payload)} needs "
            f"{least} bytes per second to be out in time"
        )
    received, every_s = round_bytes(spec, size, max(2, members)), slot_s(spec)
    if download and download * every_s < received:
        least = math.ceil(received / every_s)
        return (
            f"--download-limit {download} is too low: {bytes_text(received)} come in each "
            f"round of {every_s:g} s, which needs {least} bytes per second"
        )
    return ""


def slot_s(spec: RunSpec) -> float:
    """Least time from one round's opening to the next one's, as the run file has it."""
    rounds = spec.rounds
    return (rounds.compute_ms + (1 - rounds.overlap) * rounds.publish_ms) / 1000


def _paced_s(spec: RunSpec, status: Mapping[str, Any]) -> float:
    """The same as the coordinator paces it now, if it tells."""
    pace = status.get("pace")
    if not isinstance(pace, Mapping):
        return slot_s(spec)
    publish_s = (1 - spec.rounds.overlap) * _number(pace.get("publish"))
    return _number(pace.get("compute")) + publish_s or slot_s(spec)


def _number(value: object) -> float:
    """A number of a stranger's document; 0 for anything else."""
    known = isinstance(value, int | float) and math.isfinite(value)
    return float(value) if known else 0.0  # type: ignore[arg-type]
