"""An auditor's evidence that an author did not do its work, under the auditor's signature.

The evidence names payloads of the log. Whoever replays the log and has the run's data finds how far
each of them agrees with the gradient of its author's samples (`node.exact.sign_audit`), and
compares (`lockstep verify --work`). Copies are found without data. Shares are in ten-thousandths,
so that equal numbers are equal bytes.

The canonical bytes are the msgpack map of the fields in declaration order; the ed25519 signature
covers a domain tag and their SHA-256.
"""

from functools import lru_cache
from typing import Annotated, Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from msgspec import Meta

from protocol.audit.lots import Draw
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes, verify
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id, sha256, short

AUDITS_MAX = 32
"""Audited payloads in one piece of evidence: more than the longest test needs."""

COMPANIONS_MAX = 3
"""Companions of one audited payload: those of a panel of four."""

EVIDENCE_BYTES_MAX = 16 * 1024
"""Bytes of the longest evidence: `AUDITS_MAX` audits of some 480 bytes, with three companions."""

WHOLE = 10_000
"""The share of all."""

CHANCE = WHOLE // 2
"""The share of signs in which chance agrees."""

USUAL_DRAW = 200
"""Part of a run's compute for which auditors draw rounds, by default; the words name another."""

OPENED_KEPT = 64
"""Pieces of evidence that are remembered opened: of `EVIDENCE_BYTES_MAX` each, a mebibyte."""

ROUNDS_NAMED = 5
"""Rounds that the words name; the others are counted."""

_DOMAIN = b"lockstep.evidence.v1"

_TEXT_BYTES_MAX = 64
"""Bytes of the longest string: an id or a digest, and room for a longer one that an error names."""

Share: TypeAlias = Annotated[int, Meta(ge=0, le=WHOLE)]
Count: TypeAlias = Annotated[int, Meta(ge=0, lt=2**40)]
Round: TypeAlias = Annotated[int, Meta(ge=0, lt=2**62)]
Finding: TypeAlias = Literal["other work", "less work", "copied work"]
"""The signs are those of other samples, of noise or of a copy; or of a part of the samples; or the
places and signs are those of another payload."""


class CopySource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The payload that was copied; with the digest of the copy itself where that is of a header
    that names another author or round.
    """

    author: PeerId
    round: Round
    digest: Digest


class Companion(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A payload of the same round that was audited beside that of the accused author."""

    author: PeerId
    digest: Digest
    """The payload's."""
    agreement: Share
    compared: Count
    """Signs that were compared."""


class Cross(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The gradient that a copied payload follows, its author's or that of the source's author, at
    its places where these have different signs.
    """

    differ: Count
    """Places."""
    own: Count
    """Those of them at which it has the sign of its author's gradient."""


class WorkAudit(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """How far one committed payload agrees with the gradient of its author's samples, or is like
    another payload.
    """

    round: Round
    digest: Digest
    """The payload's."""
    agreement: Share
    """Share of its signs that are those of the gradient or, with local steps, of the movement; in a
    copy the share of places and signs that are those of the source."""
    expected: Share
    """What honest work agrees in at that time, by the audits of others; `CHANCE` where that alone
    is enough; of copies what honest payloads share."""
    source: CopySource | None = None
    """The payload that was copied; None where nothing was."""
    compared: Count = 0
    """Signs that were compared; 0 in a copy."""
    companions: Annotated[tuple[Companion, ...], Meta(max_length=COMPANIONS_MAX)] = ()
    """The audits from which `expected` follows, none where that is `CHANCE`."""
    draw: Draw | None = None
    """By which lot the round was audited; None where that proves itself: turned signs, copies."""
    cross: Cross | None = None
    """What tells the copy from its source where both are of one round; else None."""


class Evidence(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """What an auditor has found about the payloads of one author."""

    run_id: RunId
    author: PeerId
    finding: Finding
    audits: Annotated[tuple[WorkAudit, ...], Meta(min_length=1, max_length=AUDITS_MAX)]
    """By round, ascending."""
    spread: Share = 0
    """The standard deviation of honest ratios in this run, where less work was found; else 0."""


class SignedEvidence(msgspec.Struct, frozen=True):
    """Canonical bytes of evidence with the auditor's key and signature."""

    body: bytes
    public_key: bytes
    signature: bytes


def sign_evidence(evidence: Evidence, key: Ed25519PrivateKey) -> SignedEvidence:
    """The evidence under the auditor's signature."""
    body = packed(evidence)
    return SignedEvidence(body, public_bytes(key), key.sign(_DOMAIN + sha256(body)))


@lru_cache(OPENED_KEPT)
def open_evidence(signed: SignedEvidence) -> tuple[PeerId, Evidence]:
    """The auditor and its evidence, after signature, encoding and bounds were checked, the run not;
    `RemoteProtocolError` for anything else. The newest are remembered, because the door,
    the operator's desk and the machine each ask for it.
    """
    if len(signed.body) > EVIDENCE_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected evidence of at most {EVIDENCE_BYTES_MAX} bytes, got {len(signed.body)}"
        )
    auditor = verify(signed.public_key, signed.signature, _DOMAIN + sha256(signed.body))
    return auditor, read_evidence(signed.body)


@lru_cache(OPENED_KEPT)
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
        _require_companions(evidence.author, audit)
    _require_sources(evidence)
    rounds = [audit.round for audit in evidence.audits]
    if rounds != sorted(set(rounds)):
        raise RemoteProtocolError(f"expected audits of rounds in their order, got {rounds[:8]}")
    return evidence


def _require_companions(author: PeerId, audit: WorkAudit) -> None:
    """`RemoteProtocolError` unless the companions are different authors, and none the accused."""
    panel = [author, *(parse_peer_id(each.author) for each in audit.companions)]
    for each in audit.companions:
        parse_digest(each.digest)
    if len(set(panel)) != len(panel):
        raise RemoteProtocolError(
            f"expected each author once in the panel of round {audit.round}, got one of them twice"
        )


def _require_sources(evidence: Evidence) -> None:
    """`RemoteProtocolError` unless exactly copies have sources, which are before them or of another
    header.
    """
    for audit in evidence.audits:
        source = audit.source
        if audit.cross and source is None:
            raise RemoteProtocolError("expected a source beside the copy, got none")
        if (source is not None) != (evidence.finding == "copied work"):
            raise RemoteProtocolError(
                f"expected a source exactly of copied work, got {evidence.finding} with "
                f"{'one' if source else 'none'}"
            )
        if source is None:
            continue
        parse_peer_id(source.author)
        parse_digest(source.digest)
        if audit.cross:
            _require_cross(evidence.author, audit, audit.cross, source)
        elif (source.round, source.author) == (audit.round, evidence.author) or (
            source.round >= audit.round and source.digest != audit.digest
        ):
            raise RemoteProtocolError(
                f"expected a source before round {audit.round}, got one of round {source.round}"
            )


def _require_cross(author: PeerId, audit: WorkAudit, cross: Cross, source: CopySource) -> None:
    if source.round != audit.round or source.author == author or source.digest == audit.digest:
        raise RemoteProtocolError(
            f"expected another author's payload of round {audit.round} beside the copy, got one of "
            f"round {source.round}"
        )
    if cross.own > cross.differ:
        raise RemoteProtocolError(
            f"expected at most {cross.differ} signs of the author's own gradient, got {cross.own}"
        )


def words(evidence: Evidence) -> str:
    """What was found, for people."""
    audits = evidence.audits
    mean = sum(audit.agreement for audit in audits) / len(audits)
    if evidence.finding == "copied work":
        return f"work audit: {_percent(mean)} % of it copied{_from(evidence)}; {_rounds(evidence)}"
    expected = [audit.expected for audit in audits]
    if max(expected) == CHANCE:
        return (
            f"work audit: agreed in {_percent(mean)} % of signs where chance agrees in 50 %"
            f"; {_rounds(evidence)}"
        )
    others = _percent(min(expected))
    drawn = max(audit.draw.share if audit.draw else USUAL_DRAW for audit in audits)
    if _percent(max(expected)) != others:
        others += f" to {_percent(max(expected))}"
    often = "" if drawn == USUAL_DRAW else f", drawn for {_percent(drawn)} % of all compute"
    return (
        f"work audit: agreed in {_percent(mean)} % of signs where honest work agrees in {others} %"
        f"{often}; {_rounds(evidence)}"
    )


def _rounds(evidence: Evidence) -> str:
    named = ", ".join(str(audit.round) for audit in evidence.audits[:ROUNDS_NAMED])
    rest = len(evidence.audits) - ROUNDS_NAMED
    return f"round {named}" + (f" and {rest} more" if rest > 0 else "")


def _from(evidence: Evidence) -> str:
    """The author whose payloads were copied last, and the number of other ones."""
    authors = [audit.source.author for audit in evidence.audits if audit.source]
    others = len(set(authors)) - 1
    whose = "its own earlier payloads" if authors[-1] == evidence.author else short(authors[-1])
    return f" from {whose}" + (f" and {others} more" if others else "")


def _percent(share: float) -> str:
    return f"{100 * share / WHOLE:.0f}"
