"""What everybody may read of a run: the parts of its public page.

`public` is the only way from a run to its public page. It names each field, so that what is added
to the run's state stays private: hosts, addresses and hardware of members, tokens, bans, and the
operator's own words are in none of them. Names are those that volunteers chose for all to see.

    run            how the run stands, what is wrong, how to join, the model
    curve          the loss of the whole run, thinned
    contributors   who has given what, the most first
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from coordinator import status_document
from coordinator.history import TREND_ROUNDS, Credit, History
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import closing, demotion
from coordinator.machine.state.standing import COUNTED_ROUNDS
from protocol.border.text import one_line
from protocol.errors import SettingsError
from protocol.ids import PeerId
from protocol.planner.parameters import size_of
from protocol.runfile import ModelSpec
from protocol.words import quantity

Part: TypeAlias = Literal["run", "curve", "contributors"]

CONTRIBUTORS_MAX = 5_000
"""Contributors that are named: some more than a run may have members, and 200 kB."""

NAME_MAX = 40
"""Characters of a name."""

ID_SHOWN = 12
"""Characters of a key: nobody makes another one that begins with these in a year of one core."""

SKIPS_TOLD = 3
"""Skipped rounds in a row that are a problem."""


@dataclass(frozen=True, slots=True)
class View:
    """The run as its coordinator knows it."""

    rounds: RunMachine
    history: History
    now_ms: int
    join: str
    """The command that joins, without a token; empty where nobody elsewhere can."""
    files: Callable[[str], Sequence[tuple[str, int]]] = lambda _: ()
    """Names and bytes of the files of a checkpoint that anybody may fetch, by its name."""


def public(part: Part, view: View) -> dict[str, Any]:
    """A part of the public page; times in seconds, losses in nats per token."""
    return _PARTS[part](view)


def _run(view: View) -> dict[str, Any]:
    rounds = view.rounds
    state, spec = rounds.state, rounds.spec
    totals, tally = state.totals, state.verdicts.tally
    steps = state.schedule(spec).steps
    return {
        "run_id": rounds.run_id,
        "name": spec.name,
        **_size(spec.model),
        "phase": phase(rounds),
        "doing": _doing(view),
        "problems": [{"kind": kind, "text": text} for kind, text in problems(view)],
        "round": state.undecided[-1].round if state.undecided else state.decided_round,
        "steps": {"committed": totals.committed, "skipped": totals.skipped, "total": steps},
        "round_seconds": _period_s(rounds),
        "seconds_left": seconds_left(rounds),
        "loss": _finite(state.loss),
        "validation": _validation(rounds),
        "members": len(rounds.members),
        "contributors": len(view.history.credit),
        "samples": totals.samples_counted,
        "replicas": {
            "equal_by_design": spec.algorithm.facts.replicas_equal,
            "checked": tally.rounds_checked,
            "disputed": tally.rounds_disputed,
            "agreed": tally.agreed,
        },
        "join": view.join,
        "admission": state.operator.admission.mode,
        "newcomer": _newcomer(rounds),
        "model": _model(view),
    }


def phase(rounds: RunMachine) -> str:
    """One word for the phase of the run; the two halves of a round are one to everybody."""
    word = status_document.phase(rounds.state)
    return "training" if word in ("computing", "exchanging") else word


def _doing(view: View) -> str:
    rounds = view.rounds
    state = rounds.state
    match phase(rounds):
        case "finished":
            return f"The run is finished after {quantity(state.totals.committed, 'step')}."
        case "paused":
            return "The operator has paused the run; members stay and go on with it."
        case "waiting":
            needed = _needed(rounds)
            here = sum(map(rounds.members.decides, (each.peer for each in rounds.members.ready())))
            which = "with standing " if rounds.members.public else ""
            return f"Waiting for members: {here} of {needed} {which}are ready."
    newest = state.undecided[-1]
    return f"Round {newest.round:,}: {quantity(len(newest.assignments), 'computer')} at work."


def _needed(rounds: RunMachine) -> int:
    """Members that the next round needs."""
    spec = rounds.spec
    start = spec.membership.start_members if rounds.state.next_round == 0 else 1
    return max(spec.rounds.quorum, start)


def problems(view: View) -> list[tuple[str, str]]:
    """(Kind, words) of all that is wrong, the worst first; the kinds are `bad` and `wait`."""
    rounds = view.rounds
    state = rounds.state
    if state.end.finished:
        return []
    found = list[tuple[str, str]]()
    if status_document.state_lost(rounds, view.now_ms):
        lost = "No computer that is here has the newest state: the run waits for one that has it."
        found.append(("bad", lost))
    if state.verdicts.contradiction:
        text = "Two auditors came to different results: the run waits for its operator."
        found.append(("bad", text))
    elif demotion.alarm(state):
        found.append(("bad", "The operator has to look after an auditor of this run."))
    if not state.verdicts.tally.agreed:
        text = "The copies of the model were not equal after the newest round that was compared"
        found.append(("bad", f"{text}: who differs takes it anew before its work counts again."))
    if (skips := view.history.skipped_in_a_row()) >= SKIPS_TOLD:
        text = f"The last {skips:,} rounds count for nobody: too few computers were in time."
        found.append(("bad", text))
    if phase(rounds) == "waiting" and state.totals.committed:
        found.append(("wait", "Nobody trains now: too few computers are here."))
    if phase(rounds) == "paused":
        found.append(("wait", "The operator has paused the run."))
    return found


def _size(model: ModelSpec) -> dict[str, Any]:
    """Kind and size of the network; None where it cannot be told without torch."""
    try:
        parameters = size_of(model).parameters
    except SettingsError:
        parameters = None
    return {"model_type": model.type, "parameters": parameters}


def _period_s(rounds: RunMachine) -> float | None:
    """Seconds from one decision to the next, as measured; None while unknown."""
    return rounds.state.period.milliseconds / 1000 or None


def seconds_left(rounds: RunMachine) -> float | None:
    """Seconds until the run has all its steps, as rounds go now; None while that is not known."""
    period_s = _period_s(rounds)
    if period_s is None or phase(rounds) != "training":
        return None
    totals, steps = rounds.state.totals, rounds.state.schedule(rounds.spec).steps
    decided = totals.committed + totals.skipped
    rounds_a_step = decided / totals.committed if totals.committed else 1
    return (steps - totals.committed) * period_s * rounds_a_step


def _validation(rounds: RunMachine) -> dict[str, Any] | None:
    newest = rounds.state.evaluation.newest
    if newest is None or _finite(newest.loss) is None:
        return None
    return {"loss": newest.loss, "round": newest.round}


def _newcomer(rounds: RunMachine) -> dict[str, Any]:
    """Seconds until a computer that joins now works for the first time, and until its key counts in
    full; None where that is not known, or where all count at once.
    """
    period_s = _period_s(rounds)
    if phase(rounds) != "training" or period_s is None:
        return {"work_seconds": None, "counts_seconds": None}
    if not rounds.members.public:
        return {"work_seconds": period_s, "counts_seconds": None}
    turns = rounds_a_turn(rounds, more=1)
    return {
        "work_seconds": period_s * turns,
        "counts_seconds": period_s * turns * COUNTED_ROUNDS,
    }


def rounds_a_turn(rounds: RunMachine, more: int = 0) -> float:
    """Rounds in which a key without standing has one turn, among those that are here and `more`."""
    ready = [member.peer for member in rounds.members.ready()]
    standing = sum(map(rounds.members.decides, ready))
    return max(1.0, (len(ready) - standing + more) / max(1, closing.fresh_max(standing)))


def _model(view: View) -> dict[str, Any] | None:
    """The newest published checkpoint, and where members with a word have published one."""
    rounds = view.rounds
    found = rounds.state.checkpoints
    published = [each for each in found.published if each.agreed]
    addresses = [
        {"round": each.round, "url": each.url}
        for each in reversed(published)
        if rounds.members.decides(each.peer)
    ]
    if not found.made:
        return {"newest": None, "addresses": addresses} if addresses else None
    made = found.made[-1]
    newest = {
        "name": made.name,
        "round": made.round,
        "step": made.step,
        "state_digest": f"{made.state_digest:016x}",
        "sha256": made.sha256.hex(),
        "bytes": made.file_bytes,
        "confirmed": made.confirmed_by is not None,
        "files": [{"name": name, "bytes": size} for name, size in view.files(made.name)],
    }
    return {"newest": newest, "addresses": addresses}


def _curve(view: View) -> dict[str, Any]:
    trained, losses = view.history.curve.columns()
    points = [
        each for each in view.rounds.state.evaluation.points if _finite(each.loss) is not None
    ]
    return {
        "rounds": trained,
        "losses": losses,
        "rounds_a_point": view.history.curve.width,
        "validation_rounds": [each.round for each in points],
        "validation_losses": [round(each.loss, 4) for each in points],
    }


def _contributors(view: View) -> dict[str, Any]:
    """Rows of (id, name, samples, rounds, standing, rounds of work until it counts, state, trend).

    Empty state: not here. The trend is the rounds that counted in each of the newest parts, of
    `trend_rounds` rounds each; the last part has `newest_rounds` so far.
    """
    rounds, credit, nothing = view.rounds, view.history.credit, Credit()
    names: Mapping[PeerId, str] = view.history.names
    here = {member.peer: member for member in rounds.members}
    known = sorted(
        credit.keys() | here.keys(),
        key=lambda peer: (-credit.get(peer, nothing).samples, peer),
    )
    standing = rounds.members.standing
    rows = []
    for peer in known[:CONTRIBUTORS_MAX]:
        given, member = credit.get(peer, nothing), here.get(peer)
        word = status_document.standing_word(rounds, peer)
        rows.append(
            (
                peer[:ID_SHOWN],
                one_line(member.name if member else names.get(peer, ""), NAME_MAX),
                given.samples,
                given.rounds,
                word,
                COUNTED_ROUNDS - standing.payloads.get(peer, 0) if word == "fresh" else 0,
                status_document.standing(rounds, member)[0] if member else "",
                given.trend(rounds.state.decided_round),
            )
        )
    return {
        "in_all": len(known),
        "samples": sum(each.samples for each in credit.values()),
        "trend_rounds": TREND_ROUNDS,
        "newest_rounds": rounds.state.decided_round % TREND_ROUNDS + 1,
        "rows": rows,
    }


def _finite(loss: float | None) -> float | None:
    return loss if loss is not None and math.isfinite(loss) else None


_PARTS: Mapping[Part, Callable[[View], dict[str, Any]]] = {
    "run": _run,
    "curve": _curve,
    "contributors": _contributors,
}
