"""An auditor's evidence that an author did not do its work, under the auditor's signature.

The evidence names payloads of the log. Whoever replays the log and has the run's data finds how far
each of them agrees with the gradient of its author's samples (`node.demo.sign_audit`), and compares
(`lockstep verify --work`). Shares are in ten-thousandths, so that equal numbers are equal bytes.

The canonical bytes are the msgpack map of the fields in declaration order; the ed25519 signature
covers a domain tag and their SHA-256.
"""

from typing import Annotated, Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta

from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes, verify
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id, sha256

AUDITS_MAX = 32
"""Audited payloads in one piece of evidence: more than the longest test needs."""

EVIDENCE_BYTES_MAX = 8 * 1024
"""Bytes of the longest evidence: `AUDITS_MAX` audits of some 110 bytes."""

WHOLE = 10_000
"""The share of all."""

ROUNDS_NAMED = 5
"""Rounds that the words name; the others are counted."""

_DOMAIN = b"lockstep.evidence.v1"

_TEXT_BYTES_MAX = 64
"""Bytes of the longest string: an id or a digest, and room for a longer one that an error names."""

Share: TypeAlias = Annotated[int, Meta(ge=0, le=WHOLE)]
Finding: TypeAlias = Literal["other work", "less work"]
"""The signs are those of other samples, of noise or of a copy; or of a part of the samples."""


class WorkAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How far one committed payload agrees with the gradient of its author's samples."""

    round: Annotated[int, Meta(ge=0, lt=2**62)]
    digest: Digest
    """The payload's."""
    agreement: Share
    expected: Share
    """What honest work agrees in at that time, by the audits of others."""


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What an auditor has found about the payloads of one author."""

    run_id: RunId
    author: PeerId
    finding: Finding
    audits: Annotated[tuple[WorkAudit, ...], Meta(min_length=1, max_length=AUDITS_MAX)]
    """By round, ascending."""


class SignedEvidence(msgspec.Struct, frozen=True):
    """Canonical bytes of evidence with the auditor's key and signature."""

    body: bytes
    public_key: bytes
    signature: bytes


def sign_evidence(evidence: Evidence, key: Ed25519PrivateKey) -> SignedEvidence:
    """The evidence under the auditor's signature."""
    body = packed(evidence)
    return SignedEvidence(body, public_bytes(key), key.sign(_DOMAIN + sha256(body)))


def open_evidence(signed: SignedEvidence) -> tuple[PeerId, Evidence]:
    """The auditor and its evidence, after signature, encoding and bounds were checked, the run not;
    `RemoteProtocolError` for anything else.
    """
    if len(signed.body) > EVIDENCE_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected evidence of at most {EVIDENCE_BYTES_MAX} bytes, got {len(signed.body)}"
        )
    auditor = verify(signed.public_key, signed.signature, _DOMAIN + sha256(signed.body))
    return auditor, read_evidence(signed.body)


def read_evidence(body: bytes) -> Evidence:
    """The evidence in its bytes; `RemoteProtocolError` for bytes that are not canonical or out of
    bounds.
    """
    plain = unpacked(body, text_bytes_max=_TEXT_BYTES_MAX, items_max=AUDITS_MAX)
    evidence = converted(plain, Evidence)
    if packed(evidence) != body:
        raise RemoteProtocolError(
            "expected evidence in canonical encoding, got another encoding of it"
        )
    parse_peer_id(evidence.author)
    for audit in evidence.audits:
        parse_digest(audit.digest)
    rounds = [audit.round for audit in evidence.audits]
    if rounds != sorted(set(rounds)):
        raise RemoteProtocolError(f"expected audits of rounds in their order, got {rounds[:8]}")
    return evidence


def words(evidence: Evidence) -> str:
    """What was found, for people."""
    audits = evidence.audits
    mean = sum(audit.agreement for audit in audits) / len(audits)
    expected = [audit.expected for audit in audits]
    others = _percent(min(expected))
    if _percent(max(expected)) != others:
        others += f" to {_percent(max(expected))}"
    named = ", ".join(str(audit.round) for audit in audits[:ROUNDS_NAMED])
    rest = len(audits) - ROUNDS_NAMED
    more = f" and {rest} more" if rest > 0 else ""
    return (
        f"work audit: agreed in {_percent(mean)} % of signs where honest work agrees in {others} %"
        f"; round {named}{more}"
    )


def _percent(share: float) -> str:
    return f"{100 * share / WHOLE:.0f}"
