"""Receipts: which members hold which payloads of a round, and who may say so."""

from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import Holding
from coordinator.machine.rules import edges
from coordinator.machine.state.run import Run
from coordinator.machine.state.undecided_round import UndecidedRound
from protocol.ids import PeerId


def news(said: Holding, run: Run) -> Holding | None:
    """The part of the receipts that is new; late, a former member's, of one that is no witness, or
    where summers hold parts of payloads: none of it.
    """
    undecided = run.state.undecided_round(said.round)
    if undecided is None or undecided.sums or not _may_confirm(said.peer, undecided, run):
        return None
    digests = undecided.receipts.news(said.peer, said.digests)
    named = dict(zip(said.digests, said.authors, strict=False))
    authors = tuple(named[digest] for digest in digests) if named else ()
    return Holding(said.peer, said.round, digests, authors) if digests else None


def take(said: Holding, run: Run, now_ms: int) -> list[Effect]:
    """A member, or an auditor, holds payloads."""
    undecided, new = run.state.undecided_round(said.round), news(said, run)
    if undecided and new:
        undecided.receipts.hold(new.peer, new.digests, now_ms, new.authors)
        edges.note(undecided, new.peer, now_ms, new.digests)
    return []


def _may_confirm(peer: PeerId, undecided: UndecidedRound, run: Run) -> bool:
    """Whether it is noted that this node holds payloads of a round: an auditor or a member; in a
    public run one with standing that was asked to work.
    """
    if peer in undecided.receipts.auditors:
        return True
    if run.members.get(peer) is None:
        return False  # a former member's
    return not run.members.public or (run.members.decides(peer) and peer in undecided.assignments)
