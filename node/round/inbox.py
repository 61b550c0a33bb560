"""Sorts the coordinator's messages to the parts of a node that wait for them.

    members              -> swarm
    opened, resync,
    finished             -> agenda        (through `tell`)
    committed, skipped,
    chained              -> decision log, and agenda
    checkpoint,
    evaluation           -> state_requests, which the trainer shows its state
    summer_added         -> swarm
    sums_asked           -> summer
    heartbeat, evicted   -> status page

A message changes nothing at once: the trainer looks at its agenda when it is done with its step.
"""

from collections.abc import Callable, Iterable

from node.control.members import MemberList
from node.round import events
from node.round.collecting import open_round
from node.round.context import RoundContext
from node.round.own_payloads import OwnPayloads
from protocol import wire_pb2 as wire
from protocol.ids import parse_peer_id


class Inbox:
    """The listener of a trainer's coordinator client (`node.control.client.Listener`)."""

    def __init__(
        self, context: RoundContext, own: OwnPayloads, tell: Callable[[events.Event], None]
    ) -> None:
        """`tell` hands an event to the agenda and wakes the trainer."""
        self._context, self._own, self._tell = context, own, tell

    def members_changed(self, members: MemberList) -> None:
        """The swarm links to members and relays."""
        self._context.swarm.set_members(members.members, members.relays)

    def welcomed(self, welcome: wire.Welcome) -> None:
        """Announce the undecided rounds again; Ready follows when the agenda says so.
        `UnavailableError` when the coordinator lacks a commit that it gave to this node.
        """
        context = self._context
        context.heads.greeted(welcome)
        context.decisions.saw_decided(welcome.decided_round)
        self._chained(welcome.tail)
        for announced in self._own.undecided:
            context.client.send(wire.NodeMessage(announced=announced))
            context.witness.add(announced.round, context.swarm.holding(announced.round))
        context.swarm.parts.repeat()
        context.summer.decided(context.decisions.decided_round)
        context.summer.repeat()
        context.state_requests.repeat()
        self._tell(events.Welcomed())

    def received(self, message: wire.CoordinatorMessage) -> None:
        """Sort one message."""
        context = self._context
        match message.WhichOneof("kind"):
            case "opened":
                context.witness.opened(message.opened.round, message.opened.assigned)
                if message.opened.summers:  # whoever adds needs the parts, trained or not
                    open_round(context.swarm, message.opened)
                self._tell(events.Opened(message.opened))
            case "committed":
                context.decisions.committed(message.committed)
                self._decided()
            case "skipped":
                context.decisions.skipped(message.skipped)
                self._decided()
            case "summer_added":
                added = message.summer_added
                peer = parse_peer_id(added.peer_id)
                context.swarm.parts.add_summer(added.round, added.range, peer)
            case "sums_asked":
                context.summer.asked(message.sums_asked)
            case "chained":
                self._chained([message.chained])
            case "resync":
                self._tell(events.ResyncOrdered(message.resync))
            case "heartbeat":
                context.status.heard(message.heartbeat)
            case "evicted":
                reason = message.evicted.reason
                context.status.notes(f"removed by the coordinator: {reason}; joining again")
            case "checkpoint" | "evaluation":
                context.state_requests.asked(message)
                self._tell(events.StateAsked())
            case "finished":
                self._tell(events.Finished(message.finished.reason))
            case _:
                pass  # a newer coordinator's message, of no use to this version

    def _decided(self) -> None:
        self._context.summer.decided(self._context.decisions.decided_round)
        self._tell(events.Decided())

    def _chained(self, entries: Iterable[wire.ChainEntry]) -> None:
        """Entries at the head of the chain: the state may be another than the chain makes now."""
        decisions = self._context.decisions
        decisions.chained(entries)
        if decisions.outdated:
            self._tell(events.StateOutdated(decisions.outdated))
        elif decisions.restart:
            self._tell(events.Decided())  # else a node that waits for a round would not look
