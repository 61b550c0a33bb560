"""Tells events that change the state of a run from those that only show that a node is alive. Pure.

Only the former are journalled: a stranger may send messages without end, and each journalled one
stays on the disk for ever. A message without an effect is worth a heartbeat and becomes one, so
that the machine and a replay of its journal, which has no heartbeats, stay equal.
"""

from collections.abc import Sequence

from coordinator.machine import closing
from coordinator.machine.checkpoints import publishing
from coordinator.machine.checkpoints.events import CheckpointSaid
from coordinator.machine.digests import auditing
from coordinator.machine.evaluation import measuring
from coordinator.machine.evaluation.events import Evaluated
from coordinator.machine.events import (
    Announced,
    Applied,
    Audited,
    Disconnected,
    Effect,
    Event,
    Heartbeat,
    Holding,
    Joined,
    Left,
    LinksMeasured,
    NotHeld,
    Ready,
    Refuse,
)
from coordinator.machine.members.membership import Membership
from coordinator.machine.operator import orders
from coordinator.machine.operator.acts import TokenShown
from coordinator.machine.run_state import RunState
from protocol.ids import Digest


def screened(event: Event, state: RunState, members: Membership) -> Event:
    """The event itself, the part of it that can change the state, or a heartbeat of its sender when
    nothing of it can.
    """
    match event:
        case Holding(peer, round, digests, authors):
            undecided = state.undecided_round(round)
            known = undecided is not None and closing.may_confirm(peer, undecided, members)
            news = undecided.receipts.news(peer, digests) if undecided and known else ()
            named = dict(zip(digests, authors, strict=False)) if authors else {}
            headers = tuple(named[digest] for digest in news) if named else ()
            return Holding(peer, round, news, headers) if news else Heartbeat(peer)
        case Announced(peer):
            if members.get(peer) is None or not _is_news(event, state):
                return Heartbeat(peer)
        case NotHeld(peer, round, digests):
            news = state.voids.news(peer, round, digests) if members.get(peer) else ()
            return NotHeld(peer, round, news) if news else Heartbeat(peer)
        case Applied(peer, round):
            if members.get(peer) is None or round > state.head_round:
                return Heartbeat(peer)
        case Ready(peer) | Left(peer):
            if members.get(peer) is None:
                return Heartbeat(peer)
        case Audited(peer):
            if not auditing.is_news(event, state):
                return Heartbeat(peer)
        case CheckpointSaid(peer):
            if not publishing.is_news(event, state, members):
                return Heartbeat(peer)
        case Evaluated(peer):
            if not measuring.is_news(event, state, members):
                return Heartbeat(peer)
        case LinksMeasured(peer, links):
            member = members.get(peer)
            if member is None or not members.decides(peer) or member.work.links == links:
                return Heartbeat(peer)
        case TokenShown(peer):
            if not orders.gives_something(event, state, members):
                return Heartbeat(peer)
        case Disconnected(peer):
            member = members.get(peer)
            if member is None or not member.connected:
                return Heartbeat(peer)
    return event


def is_transient(event: Event, effects: Sequence[Effect]) -> bool:
    """Whether an event left the state as it was, except for leases: a heartbeat, or a node that was
    refused at the door.
    """
    if isinstance(event, Heartbeat):
        return True
    return isinstance(event, Joined) and any(
        isinstance(effect, Refuse) and effect.peer == event.peer for effect in effects
    )


def _is_news(event: Announced, state: RunState) -> bool:
    """Whether the round takes the announcement, or takes its author's word again that it holds the
    payload; or, where it closed early, whether its author may still prove itself punctual.
    """
    undecided = state.undecided_round(event.round)
    if undecided is None:
        closed = (each for each in state.closed_early if each.round == event.round)
        return any(event.peer in each.silent for each in closed)
    if event.peer not in undecided.assignments:
        return False
    if earlier := undecided.announced.get(event.peer):
        repeated = bool(event.digest) and earlier.digest == event.digest
        news = undecided.receipts.news(event.peer, (Digest(event.digest),)) if repeated else ()
        return bool(news)
    return undecided.reached not in ("publish_by", "commit_by")
