"""Tells events that change the state of a run from those that only show that a node is alive. Pure.

Only the former are journalled: a stranger may send messages without end, and each journalled one
stays on the disk for ever. A message that is no news by the rule that takes it is worth a heartbeat
and becomes one, so that the machine and a replay of its journal, which has no heartbeats, stay
equal.
"""

from collections.abc import Sequence

from coordinator.machine.events import acts, inputs
from coordinator.machine.events.effects import Effect, Refuse
from coordinator.machine.events.inputs import Event
from coordinator.machine.rules import (
    announcing,
    auditing,
    holding,
    measuring,
    membership,
    orders,
    publishing,
    reporting,
    voiding,
)
from coordinator.machine.rules.sums import adding, offering, parts
from coordinator.machine.state.run import Run


def screened(event: Event, run: Run) -> Event:
    """The event itself, the part of it that can change the state, or a heartbeat of its sender when
    nothing of it can.
    """
    match event:
        case inputs.Holding(peer):
            return holding.news(event, run) or inputs.Heartbeat(peer)
        case inputs.PartsHeld(peer):
            return parts.news(event, run) or inputs.Heartbeat(peer)
        case inputs.NotHeld(peer):
            return voiding.news(event, run) or inputs.Heartbeat(peer)
        case inputs.Announced(peer):
            news = announcing.is_news(event, run)
        case inputs.Summed(peer):
            news = adding.is_news(event, run)
        case inputs.SumsOffered(peer) | inputs.OfferEnded(peer):
            news = offering.is_news(event, run)
        case inputs.Applied(peer) | inputs.Ready(peer):
            news = reporting.is_news(event, run)
        case inputs.Audited(peer):
            news = auditing.is_news(event, run)
        case inputs.CheckpointSaid(peer):
            news = publishing.is_news(event, run)
        case inputs.Evaluated(peer):
            news = measuring.is_news(event, run)
        case inputs.LinksMeasured(peer) | inputs.Disconnected(peer) | inputs.Left(peer):
            news = membership.is_news(event, run)
        case acts.TokenShown(peer):
            news = orders.is_news(event, run)
        case _:
            return event
    return event if news else inputs.Heartbeat(peer)


def is_transient(event: Event, effects: Sequence[Effect]) -> bool:
    """Whether an event left the state as it was, except for leases: a heartbeat, or a node that was
    refused at the door.
    """
    if isinstance(event, inputs.Heartbeat):
        return True
    return isinstance(event, inputs.Joined) and any(
        isinstance(effect, Refuse) and effect.peer == event.peer for effect in effects
    )
