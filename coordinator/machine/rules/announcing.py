"""A member announces what it has computed in a round.

    asked --in time--> announced --again, with the same payload--> its author holds it still
      '----late: the round goes on without it
      '----the round closed early: it proves itself punctual, until `publish_by`

What a member announces first in a round stands. What it says of it later, in the same session or in
another, as this process or as one with a copy of its directory, changes nothing.
"""

from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import Announced
from coordinator.machine.rules import edges
from coordinator.machine.state.run import Run
from coordinator.machine.state.undecided_round import (
    UndecidedRound,
    check_announcement,
    unused_part,
)
from protocol.ids import Digest, PeerId


def is_news(said: Announced, run: Run) -> bool:
    """Whether the round takes the announcement, or takes its author's word again that it holds the
    payload; or, where it closed early, whether its author may still prove itself punctual.
    """
    undecided = run.state.undecided_round(said.round)
    if run.members.get(said.peer) is None:
        return False  # a former member's
    if undecided is None or (undecided.is_closed and said.peer in undecided.silent):
        closed = (each for each in run.state.closed_early if each.round == said.round)
        return any(said.peer in each.silent for each in closed)
    if said.peer not in undecided.assignments:
        return False
    if earlier := undecided.announced.get(said.peer):
        repeated = bool(said.digest) and earlier.digest == said.digest
        return repeated and bool(undecided.receipts.news(said.peer, (Digest(said.digest),)))
    return undecided.reached not in ("publish_by", "commit_by")


def take(said: Announced, run: Run, now_ms: int) -> list[Effect]:
    """Take the word of a member. `RemoteProtocolError` for one that no honest node gives."""
    if not is_news(said, run):
        return []  # stale, late or repeated; lateness is counted as a strike already
    undecided = run.state.undecided_round(said.round)
    if undecided is None or (undecided.is_closed and said.peer in undecided.silent):
        _prove_punctual(said, run, now_ms)
    elif said.peer in undecided.announced:  # repeated after a reconnect
        undecided.receipts.hold(said.peer, (Digest(said.digest),), now_ms)
    else:
        _take_first(said, undecided, run, now_ms)
    return []


def _take_first(said: Announced, undecided: UndecidedRound, run: Run, now_ms: int) -> None:
    assignment, work = undecided.assignments[said.peer], run.members.roster[said.peer].work
    check_announcement(said, assignment, run.spec.rounds.payload_bytes_max)
    undecided.announce(said, now_ms, _witnesses(said, undecided, run))
    edges.note(undecided, said.peer, now_ms)
    for share in unused_part(assignment.shares, said.samples):
        run.state.order.give_back(share)
    run.members.note_punctual(said.peer)
    if not run.members.public:
        work.book(said.samples, said.compute_ms)
    if said.samples:
        work.loss = said.loss


def _prove_punctual(said: Announced, run: Run, now_ms: int) -> None:
    for closed in run.state.closed_early:
        if closed.round == said.round and said.peer in closed.silent:
            closed.silent.discard(said.peer)
            if now_ms <= closed.soon_ms:
                run.members.standing.note_pace(said.peer, 0, closed.judged)
            if now_ms <= closed.publish_by_ms:
                run.members.note_punctual(said.peer)


def _witnesses(said: Announced, undecided: UndecidedRound, run: Run) -> frozenset[PeerId] | None:
    """The witnesses of a payload, where they are drawn: among the round's other workers with
    standing, and of these among those that rounds wait for and that give receipts, if there are
    any: one that is never on time would give its receipts late too.
    """
    members = run.members
    if not members.public:
        return None
    others = [peer for peer in undecided.assignments if peer != said.peer and members.decides(peer)]
    punctual = [peer for peer in others if members.confirms(peer)]
    return members.standing.witnesses(undecided.round, Digest(said.digest), punctual or others)
