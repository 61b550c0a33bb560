"""Carries the machine's effects to nodes and relays, as messages in their sessions.

    emit --one effect after the other--> a message to one node | to all of them | a log record

A message to every session is encoded once. The pages of the member list are kept while it stays as
it is.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import assert_never

from coordinator.checkpoints.desk import CheckpointDesk
from coordinator.machine.events import effects
from coordinator.machine.events.effects import (
    AskCheckpoint,
    AskEvaluation,
    CheckpointMade,
    LossMeasured,
)
from coordinator.sequencer import Outcome, Sequencer
from coordinator.service import coordinator_messages, member_list
from coordinator.service.heads import HeadDesk
from coordinator.service.relays import Relays
from coordinator.service.sessions import Message, NodeSession, SessionTable, SharedEncoding
from protocol import wire_pb2 as wire
from protocol.codec.chain import ChainEntry, Reschedule, Void
from protocol.ids import PeerId
from protocol.schedule import float32_value

log = logging.getLogger("lockstep.coordinator")


class Delivery:
    """The open sessions of one run, and what goes out to them."""

    def __init__(
        self, sequencer: Sequencer, relays: Relays, checkpoints: CheckpointDesk, heads: HeadDesk
    ) -> None:
        self._sequencer, self._relays, self._checkpoints = sequencer, relays, checkpoints
        self._heads = heads
        self.node_sessions = SessionTable("node")
        self.relay_sessions = SessionTable("relay")
        self._encoding = SharedEncoding()
        self._pages: list[wire.Members] = []  # of the member list, while it stays as it is

    def emit(self, outcome: Outcome) -> None:
        """Carry out the effects of one batch of events; none, once this coordinator is known to
        lack commits.
        """
        if self._heads.fault:
            return
        self._heads.follow(outcome)
        if changes := [
            effect for effect in outcome.effects if isinstance(effect, effects.TellMembers)
        ]:
            self._pages = []
            members = self._sequencer.rounds.members
            self.broadcast(member_list.changes_message(members, changes))
        for effect in outcome.effects:
            self._perform(effect, outcome)

    def close(self) -> None:
        """End every session."""
        for session in (*self.node_sessions, *self.relay_sessions):
            session.close()

    def turn_away(self, target: str, last: Message) -> None:
        """End the sessions of a key, or from a host, with a last message."""
        for sessions in (self.node_sessions, self.relay_sessions):
            for peer, host in sessions.hosts.items():
                if target in (peer, host):
                    sessions.close(peer, last)

    def encode(self, message: Message) -> bytes:
        """The bytes of a message; kept ones where it goes to every session."""
        return self._encoding.encode(message)

    def broadcast(
        self, message: Message, own: Mapping[PeerId, Message] = MappingProxyType({})
    ) -> None:
        """Send a message to every node and relay; in its place to some nodes their `own`."""
        self._encoding.share(message)
        for peer in self.node_sessions.hosts:
            self.node_sessions.send(peer, own.get(peer, message))
        for session in self.relay_sessions:
            session.send(message)

    def _perform(self, effect: effects.Effect, outcome: Outcome) -> None:
        match effect:
            case effects.Admit(peer):
                if session := self.node_sessions.get(peer):
                    log.info("member joined", extra=self._where(peer=peer, where=session.place))
                    self._welcome(session)
            case effects.Refuse(peer):
                self.node_sessions.close(peer, coordinator_messages.refused_message(effect))
            case effects.Evict(peer, reason, wrong_results):
                log.info("member evicted", extra=self._where(peer=peer, reason=reason))
                evicted = wire.Evicted(reason=reason, wrong_results=wrong_results)
                self.node_sessions.close(peer, Message(evicted=evicted))
            case effects.OpenRound():
                self._open_round(effect)
            case effects.SummerAdded() | effects.SumsAsked() | effects.Dispute():
                self._follow_summers(effect)
            case effects.CommitRound():
                self._commit(effect, outcome)
            case effects.Chained(entry):
                words, about = _record_of(entry)
                log.warning(words, extra=self._where(**about))
                self.broadcast(
                    Message(chained=coordinator_messages.chain_entry(outcome.entries[entry]))
                )
            case effects.SkipRound(round, reason):
                log.info("round skipped", extra=self._where(round=round, reason=reason))
                self.broadcast(Message(skipped=wire.RoundSkipped(round=round, reason=reason)))
            case effects.AskResync(peer, round, reason, number):
                log.warning(
                    "member told to resync",
                    extra=self._where(round=round, peer=peer, reason=reason),
                )
                resync = wire.Resync(round=round, reason=reason, number=number)
                self.node_sessions.send(peer, Message(resync=resync))
            case effects.FinishRun():
                head_round = self._sequencer.rounds.state.head_round
                self.broadcast(coordinator_messages.finished_message(effect, head_round))
            case effects.Notify(text):
                self.broadcast(Message(notice=wire.Notice(text=text)))
            case AskCheckpoint():
                self._ask_checkpoint(effect)
            case CheckpointMade():
                self._checkpoints.made(effect)
            case AskEvaluation(_, peer):
                self.node_sessions.send(peer, coordinator_messages.evaluation_asked(effect))
            case LossMeasured(point):
                about = {"round": point.round, "loss": point.loss, "peer": point.peer}
                log.info("validation loss", extra=self._where(**about))
            case effects.TellMembers() | effects.RecordDigest():
                pass  # told together in `emit`; already in the journal
            case _:
                assert_never(effect)

    def _follow_summers(
        self, effect: effects.SummerAdded | effects.SumsAsked | effects.Dispute
    ) -> None:
        match effect:
            case effects.SummerAdded():
                self.broadcast(coordinator_messages.summer_added(effect))
            case effects.SumsAsked(peer, questions):
                is_relay = self._sequencer.rounds.relays.get(peer) is not None
                sessions = self.relay_sessions if is_relay else self.node_sessions
                sessions.send(peer, coordinator_messages.sums_asked(questions))
            case effects.Dispute(round, number, signed):
                said = {peer: digest.hex()[:16] for peer, digest in signed}
                where = self._where(round=round, range=number, signed=said)
                log.warning("summers differ", extra=where)

    def _commit(self, effect: effects.CommitRound, outcome: Outcome) -> None:
        commit, holders = effect.commit, effect.holders
        numbers = {"contributors": commit.authors, "loss": effect.loss}
        if commit.sums:
            summers = {peer for signers in holders for peer in signers}
            numbers |= {"ranges": len(commit.sums.results), "summers": len(summers)}
        log.info("round committed", extra=self._where(round=commit.round, **numbers))
        signed, before = outcome.signed[commit.round], outcome.before.get(commit.round, ())
        own = dict[PeerId, Message]()
        if commit.sums:
            told = coordinator_messages.committed_message(signed, holders, before, to_author=True)
            self._encoding.share(told)
            own = dict.fromkeys((entry.author for entry in commit.entries), told)
        self.broadcast(coordinator_messages.committed_message(signed, holders, before), own)

    def _ask_checkpoint(self, ask: AskCheckpoint) -> None:
        plain, own = self._checkpoints.messages(ask)
        self._encoding.share(plain)
        for peer in self.node_sessions.hosts:
            if ask.to in (None, peer):
                self.node_sessions.send(peer, own.get(peer, plain))

    def _open_round(self, opened: effects.OpenRound) -> None:
        for assignment in opened.assignments:
            message = coordinator_messages.opened_message(opened, assignment)
            self.node_sessions.send(assignment.peer, message)
        without_share = coordinator_messages.opened_for_relays(opened)
        for relay in self.relay_sessions:
            relay.send(without_share)

    def _welcome(self, session: NodeSession) -> None:
        """Greet a member or relay, and tell it all the others."""
        state, newest = self._sequencer.rounds.state, self._heads.newest
        if not self._pages:
            self._pages = member_list.member_pages(self._sequencer.rounds.members, self._relays)
        first, *others = self._pages
        session.send(
            Message(
                welcome=wire.Welcome(
                    decided_round=state.decided_round,
                    head_round=state.head_round,
                    members=first,
                    head=newest.message if newest else None,
                    tail=map(coordinator_messages.chain_entry, self._sequencer.tail),
                )
            )
        )
        for page in others:
            session.send(Message(members=page))

    def welcome_relay(self, session: NodeSession) -> None:
        """Greet a relay that was admitted, and tell everybody of it."""
        self._pages = []
        self._welcome(session)
        self.tell_relays()

    def tell_relays(self, gone: PeerId | None = None) -> None:
        """Tell everybody the relays, and the one that went."""
        self._pages = []
        self.broadcast(member_list.relays_message(self._relays, gone))

    def _where(self, **fields: object) -> dict[str, object]:
        """Fields of a log record: the run, then `fields`."""
        return {"run": self._sequencer.rounds.run_id, **fields}


def _record_of(entry: ChainEntry) -> tuple[str, dict[str, object]]:
    """The words and the fields of an entry's log record."""
    if isinstance(entry, Void):
        about = {"digest": entry.digest.hex(), "reason": entry.reason}
        return "payload void", {"round": entry.round, **about}
    if isinstance(entry, Reschedule):
        rate = float32_value(entry.learning_rate_bits)
        return "schedule changed", {"step": entry.step, "steps": entry.steps, "rate": rate}
    return "restart from checkpoint", {"round": entry.round, "sha256": entry.sha256.hex()}
