"""The end of a run: the members that are waited for after its last step, and the longest wait."""

from coordinator.machine.events.effects import FinishRun
from coordinator.machine.rules import opening, publishing
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from protocol.ids import PeerId
from protocol.runfile import RunSpec

CONCLUDE_LEASES = 2
"""Leases for which a finished run waits for nodes without its last commit."""

MISSING_LEASES = 2
"""Leases before the end of a run within which a node that lapsed may still come back."""


def finish_if_due(run: Run, now_ms: int) -> None:
    """Finish the run when all steps are committed, or when the operator has ended it, no round is
    open any more and no last mean is to come.
    """
    state = run.state
    committed, end = state.totals.committed, state.end
    if end.finished:
        return
    if committed >= state.schedule(run.spec).steps:
        state.reason = f"all {committed} steps are done"
    else:
        reason = state.operator.ends(committed)
        if state.undecided or not reason or opening.owes_mean(run):
            return
        state.reason = reason
    end.finished, end.conclude_by_ms = True, now_ms + _patience_ms(run.spec)


def farewell(state: RunState) -> FinishRun:
    """The word to nodes of a finished run: why it has ended, and where its model is."""
    newest = state.checkpoints.newest
    comes = publishing.words(state) if newest is None or newest.round < state.head_round else ""
    return FinishRun("; ".join(filter(None, (state.reason, comes or publishing.place(state)))))


def _patience_ms(spec: RunSpec) -> int:
    """Time for which a finished run waits."""
    return CONCLUDE_LEASES * spec.membership.lease_ms


def behind(run: Run) -> list[PeerId]:
    """Nodes that lack the last commit of a finished run and may still ask others for it."""
    state, members = run.state, run.members
    lacking = [member.peer for member in members if member.round < state.head_round]
    leases_ms = (CONCLUDE_LEASES + MISSING_LEASES) * members.lease_ms
    return lacking + members.missing(state.end.conclude_by_ms - leases_ms)
