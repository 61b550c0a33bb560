"""Reads the messages of nodes: each becomes an event of the machine.

Every field that a stranger can write is bounded here, with the sender's name in the error.
"""

import math
from collections.abc import Sequence

from coordinator.machine.events.inputs import (
    Announced,
    Applied,
    Audited,
    CheckpointSaid,
    Evaluated,
    Event,
    Heartbeat,
    HeldParts,
    Holding,
    Joined,
    Left,
    LinksMeasured,
    NotHeld,
    PartsHeld,
    Ready,
    Summed,
)
from coordinator.machine.rules.sums import adding
from coordinator.machine.state.run import Run
from protocol import wire_pb2 as wire
from protocol.border.networks import is_for_everybody, is_near, leads_back
from protocol.border.text import clean, one_line, require_plain
from protocol.errors import RemoteProtocolError, VersionError
from protocol.handshake import KEY_BYTES, verify_hello
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id, peer_id
from protocol.limits import (
    ADDRESSES_MAX,
    LOSS_NATS_MAX,
    MEMBERS_MAX,
    PAYLOAD_BYTES_LIMIT,
    PROTOCOL_VERSION,
    VALIDATION_WINDOWS_MAX,
)
from protocol.mixing.consensus import PROJECTION_SIZE
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX, MeasuredLink
from protocol.sums.asked import summer_of


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
            f"expected a node of run {run_id}, got one of run {hello.run_id[:40]!r}: another run "
            "is at this address now; ask its operator for the link"
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
            return Ready(peer, round, ready.state_digest, ready.resyncs, ready.voids)
        case "heartbeat":
            return Heartbeat(peer)
        case "announced":
            return _announced(peer, message.announced)
        case "holding":
            return _holding(peer, message.holding)
        case "parts":
            return _parts_held(peer, message.parts)
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
            return _checkpoint_said(peer, message.checkpoint)
        case "evaluated":
            return _evaluated(peer, message.evaluated)
        case "links":
            return _links_measured(peer, message.links)
        case "leave":
            return Left(peer, clean(message.leave.reason))
        case kind:
            raise RemoteProtocolError(
                f"{peer}: expected an event of a round, got {kind or 'an empty message'}"
            )


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
        min(max(message.loss, 0.0), LOSS_NATS_MAX),
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


def _parts_held(peer: PeerId, message: wire.PartsHeld) -> PartsHeld:
    """A summer's receipts; `RemoteProtocolError` when they are out of bounds."""
    held = tuple(
        HeldParts(payload, each.ranges) for each in message.held for payload in each.payloads
    )
    different = len({each.payload for each in held})
    if not len(message.held) <= len(held) == different <= MEMBERS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {MEMBERS_MAX} payloads, each once, got {len(held)} of "
            f"{different} in {len(message.held)} receipts"
        )
    return PartsHeld(peer, _round(peer, message.round), held)


def summed(peer: PeerId, message: wire.Summed, run: Run) -> Summed | Heartbeat:
    """The event in a summer's word on a range that it was asked to add. One under another question
    than the open one shows no more than that its sender is alive. `RemoteProtocolError` when it is
    out of bounds or signed by somebody else.
    """
    round, digest = _round(peer, message.round), parse_digest(message.digest)
    if not 1 <= message.result_bytes <= PAYLOAD_BYTES_LIMIT:
        raise RemoteProtocolError(
            f"{peer}: expected a result of 1..{PAYLOAD_BYTES_LIMIT} bytes, got one of "
            f"{message.result_bytes}"
        )
    if len(message.public_key) != KEY_BYTES or peer_id(message.public_key) != peer:
        raise RemoteProtocolError(f"{peer}: expected a sum signed by its sender, got another key")
    asked = adding.question(run, round, message.range)
    if asked is None:
        return Heartbeat(peer)
    try:
        summer_of(asked, digest, message.public_key, message.signature)
    except RemoteProtocolError:  # under an older question, perhaps: the learning rate has changed
        return Heartbeat(peer)
    return Summed(
        peer,
        round,
        message.range,
        digest,
        message.result_bytes,
        asked.learning_rate_bits,
        message.public_key,
        message.signature,
    )


def _checkpoint_said(peer: PeerId, said: wire.CheckpointSaid) -> CheckpointSaid:
    """A member's word on a checkpoint; `RemoteProtocolError` when it is out of bounds."""
    require_plain(said.url, peer)
    if said.url and not is_for_everybody(said.url):
        raise RemoteProtocolError(
            f"{peer}: expected the URL of a model that everybody can reach, of kind http, https, "
            f"hf, s3 or gs and without a login, got {said.url[:80]!a}"
        )
    if said.file_bytes >= 2**48:
        raise RemoteProtocolError(
            f"{peer}: expected a checkpoint below 2**48 bytes, got one of {said.file_bytes}"
        )
    failure = clean(said.failure)
    sha256 = Digest(b"") if failure else parse_digest(said.sha256)
    round, digest = _round(peer, said.round), said.state_digest
    return CheckpointSaid(peer, round, digest, sha256, said.file_bytes, said.url, failure)


def _evaluated(peer: PeerId, said: wire.Evaluated) -> Evaluated:
    """A measured validation loss; `RemoteProtocolError` when it is out of bounds."""
    round, failure = _round(peer, said.round), clean(said.failure)
    if failure:
        return Evaluated(peer, round, 0.0, 0, b"", failure)
    if not (math.isfinite(said.loss) and 0 <= said.loss <= LOSS_NATS_MAX):
        raise RemoteProtocolError(
            f"{peer}: expected a validation loss from 0 to {LOSS_NATS_MAX:g} nats per token, got "
            f"{said.loss}"
        )
    if not 1 <= said.samples <= VALIDATION_WINDOWS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected a validation loss over 1 to {VALIDATION_WINDOWS_MAX} samples, got "
            f"one over {said.samples}"
        )
    data_sha256 = parse_digest(said.data_sha256) if said.data_sha256 else b""
    return Evaluated(peer, round, said.loss, said.samples, data_sha256)


def _links_measured(peer: PeerId, said: wire.LinksMeasured) -> LinksMeasured:
    """A member's measurements of its links; `RemoteProtocolError` for one out of bounds."""
    if len(said.links) > LINKS_MAX:
        raise RemoteProtocolError(
            f"{peer}: expected at most {LINKS_MAX} measured links, got {len(said.links)}"
        )
    others = [parse_peer_id(link.peer_id) for link in said.links]
    if others != sorted(set(others)) or peer in others:
        raise RemoteProtocolError(
            f"{peer}: expected links to other nodes, each once and sorted, got {len(others)} others"
        )
    for link in said.links:
        if link.round_trip_ms > ROUND_TRIP_MS_MAX or link.bit_per_second > BIT_S_MAX:
            raise RemoteProtocolError(
                f"{peer}: expected a round trip of at most {ROUND_TRIP_MS_MAX} ms at up to "
                f"{BIT_S_MAX} bit/s, got {link.round_trip_ms} ms at {link.bit_per_second} bit/s"
            )
    links = zip(others, said.links, strict=True)
    return LinksMeasured(
        peer,
        tuple(
            MeasuredLink(other, link.round_trip_ms, link.bit_per_second, link.greedy, link.breaks)
            for other, link in links
        ),
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
