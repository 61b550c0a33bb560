"""Translates node messages to events of the machine, and its effects to coordinator messages.

Every field that a stranger can write is bounded here, with the sender's name in the error.
"""

import math
from collections.abc import Iterable
from itertools import accumulate

from coordinator.journal import RecordedCommit
from coordinator.machine.events import (
    Announced,
    Applied,
    Assignment,
    Event,
    Heartbeat,
    Holding,
    Joined,
    Left,
    OpenRound,
    Ready,
    TellMembers,
)
from coordinator.machine.membership import Member, Membership
from protocol import wire_pb2 as wire
from protocol.codec.commits import SignedCommit
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId, parse_digest, parse_peer_id
from protocol.limits import (
    ADDRESSES_MAX,
    COMMITS_PER_REPLY,
    MEMBERS_MAX,
    MESSAGE_BYTES_MAX,
    TEXT_BYTES_MAX,
)


def joined(peer: PeerId, hello: wire.Hello) -> Joined:
    """The event in a hello whose proof is right; `RemoteProtocolError` for too many or too long
    texts.
    """
    if len(hello.addresses) > ADDRESSES_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {ADDRESSES_MAX} addresses, got {len(hello.addresses)}"
        )
    for text in (*hello.addresses, hello.name, hello.hardware, hello.software):
        if (size := len(text.encode())) > TEXT_BYTES_MAX:
            raise RemoteProtocolError(
                f"{peer}: expected texts of at most {TEXT_BYTES_MAX} bytes, got {size}"
            )
    return Joined(peer, tuple(hello.addresses), hello.name, hello.hardware, hello.software)


def event_of(peer: PeerId, message: wire.NodeMessage) -> Event:
    """The event in a message of an open session; `RemoteProtocolError` for a message that does not
    belong there or is out of bounds.
    """
    match message.WhichOneof("kind"):
        case "ready":
            ready = message.ready
            round = _round(peer, ready.round, -1)
            return Ready(peer, round, ready.state_digest, ready.has_momentum, ready.resyncs)
        case "heartbeat":
            return Heartbeat(peer)
        case "announced":
            return _announced(peer, message.announced)
        case "holding":
            return _holding(peer, message.holding)
        case "applied":
            applied = message.applied
            if applied.snapshot_sha256:
                parse_digest(applied.snapshot_sha256)
            return Applied(
                peer, _round(peer, applied.round), applied.state_digest, applied.snapshot_sha256
            )
        case "leave":
            return Left(peer, message.leave.reason[:TEXT_BYTES_MAX])
        case kind:
            raise RemoteProtocolError(
                f"{peer}: expected an event of a round, got {kind or 'an empty message'}"
            )


def heartbeat_reply(sent_ms: int, received_ms: int, replied_ms: int) -> wire.CoordinatorMessage:
    """The reply to a heartbeat, from which a node estimates the clock offset."""
    reply = wire.HeartbeatReply(sent_ms=sent_ms, received_ms=received_ms, replied_ms=replied_ms)
    return wire.CoordinatorMessage(heartbeat=reply)


def members_message(members: Membership, relays: Iterable[Joined] = ()) -> wire.Members:
    """The whole member list: members sorted by id, then relays."""
    told = [_line(member) for member in members if member.listed]
    return wire.Members(members=told + [_relay_line(relay) for relay in relays])


def relays_message(relays: Iterable[Joined], gone: PeerId | None) -> wire.CoordinatorMessage:
    """A change of the member list: all relays, and the one that went."""
    told = [_relay_line(relay) for relay in relays]
    members = wire.Members(members=told, gone=[gone] if gone else [], changes=True)
    return wire.CoordinatorMessage(members=members)


def changes_message(members: Membership, changes: Iterable[TellMembers]) -> wire.CoordinatorMessage:
    """Several changes of the member list as one message. To send the whole list at each join would
    cost a run of N members N cubed lines.
    """
    touched = {peer for change in changes for peer in (*change.came, *change.gone)}
    told = [
        _line(member) for peer in sorted(touched) if (member := members.get(peer)) and member.listed
    ]
    gone = sorted(peer for peer in touched if members.get(peer) is None)
    return wire.CoordinatorMessage(members=wire.Members(members=told, gone=gone, changes=True))


def opened_message(opened: OpenRound, assignment: Assignment) -> wire.CoordinatorMessage:
    """The opening of a round for one member."""
    return wire.CoordinatorMessage(
        opened=wire.RoundOpened(
            round=opened.round,
            step=opened.step,
            opened_ms=opened.instants.opened,
            bell_ms=opened.instants.bell,
            publish_by_ms=opened.instants.publish_by,
            commit_by_ms=opened.instants.commit_by,
            shares=[
                wire.Share(first=share.first, count=share.count) for share in assignment.shares
            ],
            learning_rate_bits=opened.learning_rate_bits,
            decay_bits=opened.decay_bits,
            muted=assignment.muted,
            reason=assignment.reason,
            assigned=opened.assigned,
        )
    )


def committed_message(
    signed: SignedCommit, holders: tuple[tuple[PeerId, ...], ...]
) -> wire.CoordinatorMessage:
    """A commit, with members that hold each of its payloads."""
    return wire.CoordinatorMessage(
        committed=wire.RoundCommitted(
            commit=wire.Committed(body=signed.body, signature=signed.signature),
            holders=[wire.Holders(peer_ids=peers) for peers in holders],
        )
    )


def recorded_message(recorded: RecordedCommit) -> wire.Committed:
    """A commit of the log, with the digest that the majority reported after it."""
    return wire.Committed(
        body=recorded.signed.body,
        signature=recorded.signed.signature,
        state_digest=recorded.state_digest or 0,
        digest_reports=recorded.reports,
        snapshot_sha256=recorded.snapshot_sha256,
    )


def commits_reply(
    recorded: list[RecordedCommit], decided_round: int, head_round: int
) -> wire.Commits:
    """One page of the log: commits in `recorded`, oldest first, as many as fit one message.

    A node takes every round up to `decided_round` that has no commit for skipped. So when commits
    are left for the next page, `decided_round` is that of the last commit in this one.
    """
    sizes = accumulate(len(row.signed.body) for row in recorded)
    told = [
        row for row, size in zip(recorded, sizes, strict=True) if size <= MESSAGE_BYTES_MAX // 2
    ] or recorded[:1]
    complete = len(told) == len(recorded) < COMMITS_PER_REPLY
    return wire.Commits(
        commits=[recorded_message(row) for row in told],
        decided_round=decided_round if complete else told[-1].round,
        head_round=head_round,
    )


def _line(member: Member) -> wire.Member:
    return wire.Member(peer_id=member.peer, addresses=member.addresses)


def _relay_line(relay: Joined) -> wire.Member:
    return wire.Member(peer_id=relay.peer, addresses=relay.addresses, relay=True)


def _announced(peer: PeerId, message: wire.Announced) -> Announced:
    if message.digest:
        parse_digest(message.digest)
    if not math.isfinite(message.loss):
        raise RemoteProtocolError(f"{peer}: expected a finite loss, got {message.loss}")
    if (largest := max(message.samples, message.compute_ms, message.payload_bytes)) >= 2**48:
        raise RemoteProtocolError(
            f"{peer}: expected counts below 2**48 in its announcement, got {largest}"
        )
    return Announced(
        peer,
        _round(peer, message.round),
        message.digest,
        message.payload_bytes,
        message.samples,
        message.compute_ms,
        message.loss,
    )


def _holding(peer: PeerId, message: wire.Holding) -> Holding:
    digests, authors = message.digests, message.authors
    if len(digests) > MEMBERS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {MEMBERS_MAX} digests, got {len(digests)}"
        )
    if authors and len(authors) != len(digests):
        raise RemoteProtocolError(
            f"{peer}: expected the authors of {len(digests)} payloads, got {len(authors)}"
        )
    return Holding(
        peer,
        _round(peer, message.round),
        tuple(parse_digest(digest) for digest in digests),
        tuple(parse_peer_id(author) if author else PeerId("") for author in authors),
    )


def _round(peer: PeerId, round: int, least: int = 0) -> int:
    if round < least:
        raise RemoteProtocolError(f"{peer}: expected a round of at least {least}, got {round}")
    return round
