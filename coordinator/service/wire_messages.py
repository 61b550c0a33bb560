"""Translates node messages to events of the machine, and its effects to coordinator messages.

Every field that a stranger can write is bounded here, with the sender's name in the error.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from coordinator.journal import RecordedCommit, RecordedEntry
from coordinator.machine.events import (
    Announced,
    Applied,
    Assignment,
    Audited,
    Event,
    Heartbeat,
    Holding,
    Joined,
    Left,
    NotHeld,
    OpenRound,
    Ready,
    TellMembers,
)
from coordinator.machine.members.member import Member
from coordinator.machine.members.membership import Membership
from coordinator.service import state_words
from coordinator.service.shares import log_bytes, share_lines, trained_lines
from protocol import wire_pb2 as wire
from protocol.border.networks import is_near, leads_back
from protocol.border.text import clean, one_line, require_plain
from protocol.codec.chain import ChainEntry, Reschedule, SignedEntry, Void
from protocol.codec.commits import SignedCommit
from protocol.errors import RemoteProtocolError, VersionError
from protocol.handshake import verify_hello
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id
from protocol.limits import (
    ADDRESSES_MAX,
    COMMITS_PER_REPLY,
    MEMBERS_MAX,
    MESSAGE_BYTES_MAX,
    PROTOCOL_VERSION,
)
from protocol.mixing.consensus import PROJECTION_SIZE
from protocol.schedule import float32_value

MEMBERS_PAGE_BYTES = 64 * 1024
"""Bytes of one page of the member list: some 600 members with usual addresses. A session whose
client does not read holds one page, not the list."""

LINE_OVERHEAD_BYTES = 8
"""Bytes that a line of a list adds to its message beyond its own."""


def proven(message: wire.NodeMessage, nonce: bytes, host: str, run_id: RunId) -> Joined:
    """The event in a hello, once its proof is right. Raises `RemoteProtocolError`,
    `VersionError`.
    """
    hello = message.hello
    if message.WhichOneof("kind") != "hello":
        raise RemoteProtocolError(f"expected a hello first, got {message.WhichOneof('kind')}")
    if hello.protocol_version != PROTOCOL_VERSION:
        raise VersionError(
            f"expected protocol version {PROTOCOL_VERSION}, got {hello.protocol_version}: "
            "update Lockstep"
        )
    if hello.run_id != run_id:
        raise RemoteProtocolError(
            f"expected a node of run {run_id}, got one of run {hello.run_id[:40]!r}"
        )
    peer = verify_hello(hello.public_key, hello.signature, run_id, nonce)
    return joined(peer, hello, host)


def joined(peer: PeerId, hello: wire.Hello, host: str) -> Joined:
    """The event in a hello whose proof is right; `RemoteProtocolError` for too many, too long or
    unprintable texts. Addresses that would lead their readers to themselves are left out, unless
    the node, seen at `host`, is on this machine or in a private network of it.
    """
    if len(hello.addresses) > ADDRESSES_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {ADDRESSES_MAX} addresses, got {len(hello.addresses)}"
        )
    for text in (*hello.addresses, hello.name, hello.hardware, hello.software):
        require_plain(text, peer)
    addresses = tuple(
        address for address in hello.addresses if is_near(host) or not leads_back(address)
    )
    about = (hello.name, hello.hardware, hello.software)
    return Joined(peer, addresses, *about, hello.instance)


def place(joined: Joined) -> str:
    """Where a node says that it is, for people: "at ADDRESS as NAME"."""
    address = one_line(joined.addresses[0]) if joined.addresses else "an unknown address"
    return f"at {address}" + (f" as {one_line(joined.name)!r}" if joined.name else "")


def event_of(peer: PeerId, message: wire.NodeMessage) -> Event:
    """The event in a message of an open session; `RemoteProtocolError` for a message that does not
    belong there or is out of bounds.
    """
    match message.WhichOneof("kind"):
        case "ready":
            ready = message.ready
            round = _round(peer, ready.round, -1)
            return Ready(
                peer, round, ready.state_digest, ready.has_momentum, ready.resyncs, ready.voids
            )
        case "heartbeat":
            return Heartbeat(peer)
        case "announced":
            return _announced(peer, message.announced)
        case "holding":
            return _holding(peer, message.holding)
        case "not_held":
            lacking = message.not_held
            return NotHeld(peer, _round(peer, lacking.round), _digests(peer, lacking.digests))
        case "applied":
            applied = message.applied
            if applied.snapshot_sha256:
                parse_digest(applied.snapshot_sha256)
            about = applied.state_digest, applied.snapshot_sha256, applied.voids
            round = _round(peer, applied.round)
            return Applied(peer, round, *about, *_own_report(peer, applied))
        case "audited":
            audited = message.audited
            if audited.snapshot_sha256:
                parse_digest(audited.snapshot_sha256)
            return Audited(
                peer,
                _round(peer, audited.round, -1),
                audited.state_digest,
                audited.snapshot_sha256,
                audited.voids,
            )
        case "checkpoint":
            return state_words.checkpoint_said(peer, message.checkpoint)
        case "evaluated":
            return state_words.evaluated(peer, message.evaluated)
        case "links":
            return state_words.links_measured(peer, message.links)
        case "leave":
            return Left(peer, clean(message.leave.reason))
        case kind:
            raise RemoteProtocolError(
                f"{peer}: expected an event of a round, got {kind or 'an empty message'}"
            )


def heartbeat_reply(
    sent_ms: int, received_ms: int, replied_ms: int, standing: tuple[str, str] = ("", "")
) -> wire.CoordinatorMessage:
    """The reply to a heartbeat, from which a node estimates the clock offset and learns its
    standing: (state, reason).
    """
    reply = wire.HeartbeatReply(
        sent_ms=sent_ms,
        received_ms=received_ms,
        replied_ms=replied_ms,
        state=standing[0],
        reason=standing[1],
    )
    return wire.CoordinatorMessage(heartbeat=reply)


def member_pages(members: Membership, relays: Iterable[Joined] = ()) -> list[wire.Members]:
    """The whole member list, members sorted by id and then relays, in pages of some
    `MEMBERS_PAGE_BYTES`: the first replaces what a node knows, the others are changes. At least
    one page.
    """
    pages, size = [wire.Members()], 0
    listed = [member for member in members if member.listed]
    for line in (*map(_line, listed), *map(_relay_line, relays)):
        size += line.ByteSize()
        if size > MEMBERS_PAGE_BYTES and pages[-1].members:
            pages.append(wire.Members(changes=True))
            size = line.ByteSize()
        pages[-1].members.append(line)
    return pages


def members_message(members: Membership, relays: Iterable[Joined] = ()) -> wire.Members:
    """The member list as one message, in the order of `member_pages`: all relays, and the members
    that fit.
    """
    told = [_relay_line(relay) for relay in relays]
    left = MESSAGE_BYTES_MAX // 2 - sum(line.ByteSize() for line in told)
    lines = [_line(member) for member in members if member.listed]
    sizes = accumulate(line.ByteSize() + LINE_OVERHEAD_BYTES for line in lines)
    fitting = [line for line, size in zip(lines, sizes, strict=True) if size <= left]
    return wire.Members(members=fitting + told)


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
            shares=share_lines(assignment.shares),
            learning_rate_bits=opened.learning_rate_bits,
            decay_bits=opened.decay_bits,
            muted=assignment.muted,
            reason=assignment.reason,
            assigned=opened.assigned,
            mean=opened.mean,
            among_neighbours=opened.among_neighbours,
            only_mixes=opened.only_mixes,
            neighbours=assignment.neighbours if opened.among_neighbours else (),
        )
    )


def entry_of(signed: SignedEntry) -> wire.ChainEntry:
    """An entry of the chain."""
    return wire.ChainEntry(body=signed.body, signature=signed.signature)


def entry_record(entry: ChainEntry) -> tuple[str, dict[str, object]]:
    """The words and the fields of an entry's log record."""
    if isinstance(entry, Void):
        about = {"digest": entry.digest.hex(), "reason": entry.reason}
        return "payload void", {"round": entry.round, **about}
    if isinstance(entry, Reschedule):
        rate = float32_value(entry.learning_rate_bits)
        return "schedule changed", {"step": entry.step, "steps": entry.steps, "rate": rate}
    return "restart from checkpoint", {"round": entry.round, "sha256": entry.sha256.hex()}


def committed_message(
    signed: SignedCommit,
    holders: tuple[tuple[PeerId, ...], ...],
    before: Iterable[SignedEntry] = (),
) -> wire.CoordinatorMessage:
    """A commit, with members that hold each of its payloads and the entries of the chain in front
    of it.
    """
    return wire.CoordinatorMessage(
        committed=wire.RoundCommitted(
            commit=wire.Committed(
                body=signed.body, signature=signed.signature, before=map(entry_of, before)
            ),
            holders=[wire.Holders(peer_ids=peers) for peers in holders],
        )
    )


def recorded_message(
    recorded: RecordedCommit, entries: Sequence[RecordedEntry] = (), previous_round: int = -1
) -> wire.Committed:
    """A commit of the log, with the digest that the majority reported after it, the entries of the
    chain between it and the commit of `previous_round`, and those that make its payloads void.
    """
    before = [each for each in entries if previous_round <= each.after_round < recorded.round]
    voids = [each for each in entries if each.round == recorded.round]
    return wire.Committed(
        body=recorded.signed.body,
        signature=recorded.signed.signature,
        state_digest=recorded.state_digest or 0,
        digest_reports=recorded.reports,
        snapshot_sha256=recorded.snapshot_sha256,
        before=[entry_of(each.signed) for each in before],
        voids=[entry_of(each.signed) for each in voids],
        trained=trained_lines(recorded),
    )


def commits_reply(
    recorded: list[RecordedCommit],
    decided_round: int,
    head_round: int,
    entries: Sequence[RecordedEntry] = (),
) -> wire.Commits:
    """One page of the log: commits in `recorded`, oldest first, as many as fit one message, with
    the `entries` of the chain around them.

    A node takes every round up to `decided_round` that has no commit for skipped. So when commits
    are left for the next page, `decided_round` is that of the last commit in this one.
    """
    sizes = accumulate(map(log_bytes, recorded))
    told = [
        row for row, size in zip(recorded, sizes, strict=True) if size <= MESSAGE_BYTES_MAX // 2
    ] or recorded[:1]
    complete = len(told) == len(recorded) < COMMITS_PER_REPLY
    previous = [-1, *(row.round for row in told)]
    last = told[-1].round if told else head_round
    return wire.Commits(
        commits=[
            recorded_message(row, entries, before)
            for row, before in zip(told, previous, strict=False)
        ],
        decided_round=decided_round if complete else told[-1].round,
        head_round=head_round,
        tail=[entry_of(each.signed) for each in entries if complete and each.after_round == last],
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
    digests, authors = _digests(peer, message.digests), message.authors
    if authors and len(authors) != len(digests):
        raise RemoteProtocolError(
            f"{peer}: expected the authors of {len(digests)} payloads, got {len(authors)}"
        )
    return Holding(
        peer,
        _round(peer, message.round),
        digests,
        tuple(parse_peer_id(author) if author else PeerId("") for author in authors),
    )


def _own_report(peer: PeerId, said: wire.Applied) -> tuple[tuple[float, ...], float]:
    """(Projection, size of an update) of parameters of the node's own."""
    count, finite = len(said.projection), map(math.isfinite, (*said.projection, said.update))
    if count not in (0, PROJECTION_SIZE) or not all(finite) or said.update < 0:
        raise RemoteProtocolError(
            f"{peer}: expected a projection of {PROJECTION_SIZE} finite numbers, or none, got "
            f"{count}, with an update of 0 or more, got {said.update:g}"
        )
    return tuple(said.projection), said.update


def _digests(peer: PeerId, digests: Sequence[bytes]) -> tuple[Digest, ...]:
    if len(digests) > MEMBERS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {MEMBERS_MAX} digests, got {len(digests)}"
        )
    return tuple(parse_digest(digest) for digest in digests)


def _round(peer: PeerId, round: int, least: int = 0) -> int:
    if round < least:
        raise RemoteProtocolError(f"{peer}: expected a round of at least {least}, got {round}")
    return round
