"""Receipts of summers: the parts of payloads that they hold, until the set of authors is fixed."""

from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import PartsHeld
from coordinator.machine.state.run import Run


def news(said: PartsHeld, run: Run) -> PartsHeld | None:
    """The part of the receipts that is new; late, of a node that went, or of one that does
    not add: none of it.
    """
    undecided = run.state.undecided_round(said.round)
    if undecided is None or undecided.sums is None or undecided.is_closed:
        return None
    if not run.is_here(said.peer):
        return None
    held = undecided.sums.parts.news(said.peer, said.held)
    return PartsHeld(said.peer, said.round, held) if held else None


def take(said: PartsHeld, run: Run, now_ms: int) -> list[Effect]:
    """A summer holds parts."""
    undecided, new = run.state.undecided_round(said.round), news(said, run)
    if undecided and undecided.sums and new:
        undecided.sums.hold(new.peer, new.held, now_ms)
    return []
