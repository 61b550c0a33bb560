"""Entries of the chain beside commits: what the coordinator signs to change what the log means.

    commit 3 <- commit 4 <- void (round 3, digest) <- commit 6 <- ... head

An entry's canonical bytes are the msgpack map of its fields in declaration order, led by its
`kind`; a commit's map has no `kind`, so that no bytes are both. Its digest is their SHA-256, and
the next entry or commit names it as `previous`: a void cannot be taken out of the chain, nor put in
afterwards. The ed25519 signature covers a domain tag and the digest.

A **restart** says that the run goes on from a checkpoint, because nobody holds the state after its
newest commit any more: the state behind the entry is the named one, whatever the commits in front
of it make. A replica with any other state discards it and takes the named one.

A **reschedule** says that the operator has given the run another length or another largest learning
rate. Commits carry the rate of their own step, so it changes no state; it says why their rates are
not those of the run file, and `lockstep verify` compares them (`protocol.schedule.in_force`).

A **void** says that one payload of an earlier commit counts for nothing, because no member can give
it. The void lies behind the commit in the chain, and a replica that replays the log passes over the
payload when it reaches the commit. A replica that had applied the payload holds a state that the
chain does not make: it discards the state and replays.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.codec.commits import Commit, require_signed
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, RunId, parse_digest, sha256

VoidReason = Literal["nobody has it", "most lack it"]
"""Reason why a payload is void: every member that was asked lacks it, or two in three do."""

_DOMAIN = b"lockstep.chain.v1"

_TEXT_BYTES_MAX = 64
"""Bytes of the longest string in an entry: an id or a digest, and room for a longer one that a
clear error then names."""

_FIELDS_MAX = 16

STEPS_MAX = 100_000_000
"""Steps of a run at most, as in the run file."""

LEARNING_RATE_BITS_MAX = 0x41200000
"""The bits of 10.0 as a float32: the largest learning rate, as in the run file. Positive floats are
ordered as their bits are."""


class Void(msgspec.Struct, frozen=True, tag_field="kind", tag="void", forbid_unknown_fields=True):
    """The payload `digest` of the commit of `round` counts for nothing."""

    run_id: RunId
    round: int
    digest: Digest
    reason: VoidReason
    previous: Digest


class Restart(
    msgspec.Struct, frozen=True, tag_field="kind", tag="restart", forbid_unknown_fields=True
):
    """The run goes on from a checkpoint, behind the commit of `round`, the newest one then."""

    run_id: RunId
    round: int
    sha256: Digest
    """SHA-256 of the canonical bytes of the parameters, as snapshots are named."""
    state_digest: int
    """The quick digest of the same parameters, 64 bits."""
    previous: Digest


class Reschedule(
    msgspec.Struct, frozen=True, tag_field="kind", tag="schedule", forbid_unknown_fields=True
):
    """From step `step` on the run has `steps` steps in all and this largest learning rate, by the
    operator's order; it was given behind the commit of `round`, -1 before the first.
    """

    run_id: RunId
    round: int
    step: int
    steps: int
    learning_rate_bits: int
    """The largest learning rate, as the bits of a float32."""
    previous: Digest


ChainEntry = Void | Restart | Reschedule
"""An entry of the chain that is no commit."""


@dataclass(frozen=True, slots=True)
class SignedEntry:
    """An entry's canonical bytes with the coordinator's signature."""

    body: bytes
    signature: bytes


def entry_digest(entry: ChainEntry) -> Digest:
    """The entry's name in the chain."""
    return sha256(packed(entry))


def sign_entry(entry: ChainEntry, key: Ed25519PrivateKey) -> SignedEntry:
    """The entry under the coordinator's signature; the same entry always gives the same
    signature.
    """
    body = packed(entry)
    return SignedEntry(body, key.sign(_DOMAIN + sha256(body)))


def open_entry(signed: SignedEntry, coordinator_key: bytes, run_id: RunId) -> ChainEntry:
    """The entry inside, after its signature, encoding, run and bounds were checked.

    Raises `RemoteProtocolError` for anything that the coordinator with this key did not sign or
    that is not canonical.
    """
    content = _DOMAIN + sha256(signed.body)
    require_signed("an entry of the chain", content, signed.signature, coordinator_key)
    plain = unpacked(signed.body, text_bytes_max=_TEXT_BYTES_MAX, items_max=_FIELDS_MAX)
    entry: ChainEntry = converted(plain, ChainEntry)  # type: ignore[arg-type]
    if packed(entry) != signed.body:
        raise RemoteProtocolError(
            "expected an entry of the chain in canonical encoding, got another encoding of it"
        )
    if entry.run_id != run_id:
        raise RemoteProtocolError(
            f"expected an entry of the chain of run {run_id}, got one of run {entry.run_id}"
        )
    if isinstance(entry, Void | Restart):
        parse_digest(entry.digest if isinstance(entry, Void) else entry.sha256)
    parse_digest(entry.previous)
    least = -1 if isinstance(entry, Reschedule) else 0
    if entry.round < least:
        raise RemoteProtocolError(
            f"expected an entry about a round from {least} on, got one about {entry.round}"
        )
    if isinstance(entry, Reschedule):
        _require_schedule(entry)
    if isinstance(entry, Restart) and not 0 <= entry.state_digest < 2**64:
        raise RemoteProtocolError(
            f"expected a state digest of 64 bits, got {entry.state_digest:#x}"
        )
    return entry


def _require_schedule(entry: Reschedule) -> None:
    in_order = 0 <= entry.step <= entry.steps <= STEPS_MAX
    if not in_order or not 0 < entry.learning_rate_bits <= LEARNING_RATE_BITS_MAX:
        raise RemoteProtocolError(
            f"expected a schedule of at most {STEPS_MAX} steps with a learning rate above 0 and at "
            f"most 10, got {entry.steps} steps from step {entry.step} on with a rate of bits "
            f"{entry.learning_rate_bits:#x}"
        )


def linked(
    head: Digest, entries: Iterable[ChainEntry], before: Commit | None = None
) -> tuple[list[ChainEntry], Digest]:
    """The entries that follow `head` one after the other, and the digest of the last of them.

    `entries` may begin with some that `head` is behind already. Raises `RemoteProtocolError` when
    `before`, the commit after them, does not follow the last.
    """
    by_previous = {entry.previous: entry for entry in entries}
    chain: list[ChainEntry] = []
    while (entry := by_previous.pop(head, None)) and (before is None or before.previous != head):
        chain.append(entry)
        head = entry_digest(entry)
    if before is not None and before.previous != head:
        raise RemoteProtocolError(
            f"commit of round {before.round} does not follow the entries before it: expected "
            f"previous {head.hex()[:16]}, got {before.previous.hex()[:16]}"
        )
    return chain, head
