"""The readers of foreign bytes, each with inputs that are right and the promise that is judged.

`judge(blob)` returns normally for what the reader takes, and raises one of `EXPECTED` for what it
refuses. Anything else that it raises is a finding: an exception that no caller expects, or a
promise that was broken (`AssertionError`).
"""

import contextlib
import hashlib
import struct
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

import msgspec
import numpy as np
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding
from google.protobuf.message import DecodeError

from coordinator.checkpoints.parameters import digests_of
from coordinator.service.node_messages import event_of, joined
from node.data.manifest import SPLITS, Manifest, Shard
from node.links import frames
from protocol import wire_pb2 as wire
from protocol.border.certificates import certificate, vouching_key
from protocol.border.join_link import parse_link
from protocol.codec.announcement import announce, announcement_of, check_signature, offered_payload
from protocol.codec.chain import Reschedule, Restart, SignedEntry, Void, open_entry
from protocol.codec.commit_sums import RangeSum
from protocol.codec.commits import (
    Commit,
    Entry,
    Mix,
    SignedCommit,
    commit_bytes,
    genesis_digest,
    open_commit,
    signed_bytes,
)
from protocol.codec.decoding import UNREADABLE
from protocol.codec.messagepack import packed
from protocol.codec.parameters import decode_parameters, encode_parameters
from protocol.codec.payload import Coefficients, Header, PayloadShape, decode, encode
from protocol.errors import DataError, RemoteProtocolError, SettingsError, VersionError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, sha256
from protocol.runfile import RunSpec, parse_run_json, run_json
from tests.support.summed import sums_of
from tests.support.votes import two_scales

EXPECTED = (DataError, RemoteProtocolError, SettingsError, VersionError)

RUN = RunId("ab" * 16)
PEER = PeerId("cd" * 16)
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))

SHAPES = (
    PayloadShape(3, 8, 1),
    PayloadShape(2, 4, 4),
    PayloadShape(5, 3, 2, scaled=True),
    PayloadShape(1, 4096, 8),
)


@dataclass(frozen=True, slots=True)
class Target:
    """One reader."""

    judge: Callable[[bytes], object]
    seeds: tuple[bytes, ...]
    """Inputs that the reader takes."""
    share: int = 100
    """Executions of it among those of all targets; fewer for a slow reader."""


# ---- payloads


def _coefficients(shape: PayloadShape, number: int) -> Coefficients:
    if shape.scale_count > 1:
        return two_scales(shape.chunks, shape.top_k, number)
    random = np.random.default_rng(number)
    counts = random.integers(0, min(shape.top_k, 20) + 1, shape.chunks).astype(np.uint16)
    places = [np.sort(random.choice(4096, count, replace=False)) for count in counts]
    values = random.integers(1, shape.value_max + 1, int(counts.sum())).astype(np.int16)
    values *= random.choice(np.array([-1, 1], np.int16), len(values))
    scales = np.where(counts > 0, 77, 0).astype(np.uint8) if shape.scaled else None
    return Coefficients(counts, np.concatenate(places).astype(np.uint16), values, scales)


def payload_for(shape: PayloadShape, round: int, author: PeerId, number: int) -> bytes:
    """A payload with random coefficients, of the seed `number`."""
    return encode(Header(RUN, round, author), _coefficients(shape, number), shape)


def payloads(shape: PayloadShape) -> tuple[bytes, ...]:
    """Payloads of one shape."""
    return tuple(payload_for(shape, 3, PEER, number) for number in range(4))


def judge_payload(blob: bytes, shape: PayloadShape) -> None:
    """What decodes is the only encoding of what it says."""
    header, coefficients = decode(blob, shape)
    assert encode(header, coefficients, shape) == blob, "a second encoding"


PARAMETERS = 24


def judge_parameters(blob: bytes) -> None:
    header, values = decode_parameters(blob, PARAMETERS)
    assert encode_parameters(header, values) == blob, "a second encoding"


def _parameters() -> tuple[bytes, ...]:
    numbers = np.linspace(-2, 2, PARAMETERS)
    header = Header(RUN, 3, PEER)
    return tuple(encode_parameters(header, numbers.astype(form)) for form in ("<f2", "<f4"))


# ---- the chain


def _commits() -> tuple[bytes, ...]:
    authors = [PeerId(f"{number:032x}") for number in (1, 2, 3)]
    entries = tuple(Entry(author, sha256(author.encode()), 100, 1, 7) for author in authors)
    plain = Commit(RUN, 3, 2, entries, 0x3C23D70A, 0x3F800000, genesis_digest(RUN))
    mixed = replace(plain, round=4, step=3, mix=Mix(False, ((0, 1, 2),)))
    results = tuple(RangeSum(number, sha256(b"sum"), 9) for number in range(2))
    summed = replace(plain, round=5, step=4, sums=sums_of(3, results, entries))
    return commit_bytes(plain), commit_bytes(mixed), commit_bytes(summed)


class _Place(msgspec.Struct):
    run_id: RunId
    round: int
    step: int


def judge_commit(blob: bytes) -> None:
    """Signed by the coordinator itself: even that one can stop no node with a wrong form."""
    signature = bytes(64)
    with contextlib.suppress(*UNREADABLE, ValueError):
        said = msgspec.msgpack.decode(blob, type=_Place)
        signature = KEY.sign(signed_bytes(said.run_id, said.round, said.step, sha256(blob)))
    assert commit_bytes(open_commit(SignedCommit(blob, signature), public_bytes(KEY))) == blob


def _entries() -> tuple[bytes, ...]:
    head = genesis_digest(RUN)
    return tuple(
        packed(entry)
        for entry in (
            Void(RUN, 3, sha256(b"payload"), "nobody has it", head),
            Restart(RUN, 3, sha256(b"state"), 12345, head),
            Reschedule(RUN, 3, 2, 100, 0x3C23D70A, head),
        )
    )


def judge_entry(blob: bytes) -> None:
    signature = KEY.sign(b"lockstep.chain.v1" + sha256(blob))
    assert packed(open_entry(SignedEntry(blob, signature), public_bytes(KEY), RUN)) == blob


# ---- links


def link_messages() -> tuple[wire.LinkMessage, ...]:
    said = announce(KEY, RUN, 3, sha256(b"payload"), size=100, samples=7)
    offers = wire.Offers(run_id=RUN, sender=PEER, offers=[offered_payload(said)])
    return (
        wire.LinkMessage(offers=wire.LinkOffers(request=1, offers=offers)),
        wire.LinkMessage(taken=wire.Taken(request=3)),
    )


def _streams() -> tuple[bytes, ...]:
    part = frames.encode(frames.Part(1, 0, 10, b"0123456789"))
    whole = tuple(frames.encode(message) for message in link_messages())
    return (*whole, part, part + whole[0])


def judge_stream(blob: bytes) -> None:
    """A stream that comes in two pieces says what it says in one."""
    whole = _read(blob)
    assert _read(blob[: len(blob) // 2], blob[len(blob) // 2 :]) == whole
    if whole and isinstance(refusal := whole[-1], RefusedStreamError):
        raise refusal


def _read(*pieces: bytes) -> list[object]:
    reader, found = frames.FrameReader(), list[object]()
    try:
        for piece in pieces:
            found += reader.feed(piece)
    except RemoteProtocolError as error:
        found.append(RefusedStreamError(str(error)))
    return found


class RefusedStreamError(RemoteProtocolError):
    """A refusal that equals one in the same words."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RefusedStreamError) and str(self) == str(other)

    __hash__ = RemoteProtocolError.__hash__


def judge_frame(blob: bytes) -> None:
    """A frame of any kind and body whose length and digest are right."""
    judge_stream(framed(blob[0] % 3, blob[1:]) if blob else framed(1, b""))


def framed(kind: int, body: bytes) -> bytes:
    """A frame whose length and digest are right."""
    head = struct.pack(">2sBBI", b"LS", kind, 0, len(body))
    return head + hashlib.sha256(head + body).digest()[:8] + body


def _bodies() -> tuple[bytes, ...]:
    return tuple(bytes([stream[2]]) + stream[frames.HEADER_BYTES :] for stream in _streams()[:3])


def judge_offer(blob: bytes) -> None:
    check_signature(announcement_of(parsed(wire.OfferedPayload, blob)), RUN)


def _offers() -> tuple[bytes, ...]:
    said = announce(KEY, RUN, 3, sha256(b"payload"), size=100, samples=7)
    return (offered_payload(said).SerializeToString(),)


# ---- the coordinator's door


def parsed(kind: type, blob: bytes) -> object:
    try:
        return kind.FromString(blob)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise RemoteProtocolError(str(error)) from None


def _node_messages() -> tuple[bytes, ...]:
    digest = sha256(b"payload")
    messages = (
        wire.NodeMessage(ready=wire.Ready(round=3, state_digest=5, voids=1)),
        wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=12)),
        wire.NodeMessage(
            announced=wire.Announced(
                round=3, digest=digest, payload_bytes=100, samples=7, compute_ms=900, loss=2.5
            )
        ),
        wire.NodeMessage(holding=wire.Holding(round=3, digests=[digest, sha256(b"other")])),
        wire.NodeMessage(not_held=wire.NotHeld(round=3, digests=[digest])),
        wire.NodeMessage(
            parts=wire.PartsHeld(round=3, held=[wire.HeldParts(ranges=5, payloads=[0, 7])])
        ),
        wire.NodeMessage(
            applied=wire.Applied(round=3, state_digest=5, snapshot_sha256=digest, voids=1)
        ),
        wire.NodeMessage(audited=wire.Audited(round=3, state_digest=5, snapshot_sha256=digest)),
        wire.NodeMessage(leave=wire.Leave(reason="the evening is over")),
    )
    return tuple(message.SerializeToString() for message in messages)


def judge_node_message(blob: bytes) -> None:
    """An event goes through the journal, and comes back as the same event."""
    event = event_of(PEER, parsed(wire.NodeMessage, blob))  # type: ignore[arg-type]
    packed_once = msgspec.msgpack.encode(event)
    again = msgspec.msgpack.decode(packed_once, type=type(event))
    assert msgspec.msgpack.encode(again) == packed_once, "another event after a restart"


def _hellos() -> tuple[bytes, ...]:
    hello = wire.Hello(
        protocol_version=1,
        run_id=RUN,
        public_key=public_bytes(KEY),
        signature=b"s" * 64,
        addresses=["192.0.2.1:50700", "grpc://example.org:1"],
        name="a node",
        hardware="2 cores",
        software="0.1",
    )
    return (hello.SerializeToString(),)


def judge_hello(blob: bytes) -> None:
    """Whatever a hello says, what becomes of it can be shown."""
    found = joined(PEER, parsed(wire.Hello, blob), "192.0.2.9")  # type: ignore[arg-type]
    for text in (*found.addresses, found.name, found.hardware, found.software):
        assert text.isprintable(), "unprintable text"
    msgspec.msgpack.encode(found)


# ---- what people and servers give


def judge_link(blob: bytes) -> None:
    link = parse_link(blob.decode("utf-8", "replace"))
    assert parse_link(link.text()) == link, "another link after printing"


LINKS = (
    b"lockstep://example.org:50700/" + b"ab" * 16 + b"#" + b"A" * 43,
    b"plain://10.0.0.1:50700",
    b"[2001:db8::1]:50700",
    b"lockstep://h:1/" + b"ab" * 16 + b"?token=abcdefgh#" + b"A" * 43,
)


def judge_run_file(blob: bytes) -> None:
    spec = parse_run_json(blob, "the run file")
    assert parse_run_json(run_json(spec), "the same") == spec, "another run after printing"


@cache
def _certificate() -> bytes:
    channel = ec.derive_private_key(7, ec.SECP256R1())
    begin, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2036, 1, 1, tzinfo=UTC)
    pem = certificate(KEY, channel, begin, end)
    return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)


# ---- files of strangers


def judge_manifest(blob: bytes) -> None:
    """What is read of a manifest is written and read again as it was."""
    manifest = Manifest.from_json(blob, "manifest")
    assert Manifest.from_json(manifest.to_json(), "manifest") == manifest


def _manifest() -> bytes:
    splits = {name: (Shard(f"{name}-00000.bin", 9, "ab" * 32, "cd" * 32),) for name in SPLITS}
    about = {"kind": "subwords", "document_end": "</s>", "file": '{"version": "1.0"}'}
    return Manifest("a test", about, 300, "<u2", {"train": 9, "validation": 1}, splits, 8).to_json()


def judge_checkpoint(blob: bytes) -> None:
    """The digests of a file with parameters are computed, or it is refused."""
    path = Path(_place().name) / "model.safetensors"
    path.write_bytes(blob)
    digests_of([path])


@cache
def _place() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def _checkpoint() -> bytes:
    header = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},'
        b'"b":{"dtype":"F32","shape":[],"data_offsets":[8,12]}}'
    )
    return struct.pack("<Q", len(header)) + header + bytes(12)


def targets() -> dict[str, Target]:
    """All readers by name."""
    found = {
        f"payload {shape.chunks}x{shape.top_k}x{shape.value_bits}": Target(
            lambda blob, shape=shape: judge_payload(blob, shape),  # type: ignore[misc]
            payloads(shape),
        )
        for shape in SHAPES
    }
    spec = run_json(RunSpec())
    return found | {
        "parameters": Target(judge_parameters, _parameters()),
        "commit": Target(judge_commit, _commits(), 50),
        "chain entry": Target(judge_entry, _entries(), 50),
        "stream": Target(judge_stream, _streams()),
        "frame": Target(judge_frame, _bodies()),
        "offer": Target(judge_offer, _offers(), 50),
        "node message": Target(judge_node_message, _node_messages()),
        "hello": Target(judge_hello, _hellos()),
        "join link": Target(judge_link, LINKS),
        "run file": Target(judge_run_file, (spec,), 10),
        "manifest": Target(judge_manifest, (_manifest(),), 50),
        "checkpoint": Target(judge_checkpoint, (_checkpoint(),), 10),
        "certificate": Target(vouching_key, (_certificate(),), 20),
    }
