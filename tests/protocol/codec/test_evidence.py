"""Evidence of an auditor: one encoding, a signature, bounds, and words for people."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.codec.evidence import (
    AUDITS_MAX,
    EVIDENCE_BYTES_MAX,
    Evidence,
    SignedEvidence,
    WorkAudit,
    open_evidence,
    sign_evidence,
    words,
)
from protocol.codec.messagepack import packed
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id, sha256

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
RUN, AUTHOR = RunId("ab" * 16), PeerId("cd" * 16)


def evidence(*rounds: int, agreement: int = 5100) -> Evidence:
    audits = tuple(
        WorkAudit(round, sha256(b"%d" % round), agreement, 8000 + round) for round in rounds
    )
    return Evidence(RUN, AUTHOR, "other work", audits)


def resigned(body: bytes) -> SignedEvidence:
    """The bytes under the key's signature, whatever they are."""
    honest = sign_evidence(evidence(1), KEY)
    assert honest.body != body
    signature = KEY.sign(b"lockstep.evidence.v1" + sha256(body))
    return SignedEvidence(body, honest.public_key, signature)


def test_it_comes_back_with_the_auditor_that_signed_it() -> None:
    said = evidence(120, 131, 140)
    assert open_evidence(sign_evidence(said, KEY)) == (peer_id(public_bytes(KEY)), said)


def test_the_longest_evidence_fits_its_bound() -> None:
    long = evidence(*(2**62 - 1 - AUDITS_MAX + place for place in range(AUDITS_MAX)), agreement=0)
    rows = tuple(msgspec.structs.replace(row, expected=10_000) for row in long.audits)
    signed = sign_evidence(msgspec.structs.replace(long, audits=rows), KEY)
    assert len(signed.body) <= EVIDENCE_BYTES_MAX
    open_evidence(signed)


def test_changed_bytes_are_not_the_auditors() -> None:
    signed = sign_evidence(evidence(1), KEY)
    changed = msgspec.structs.replace(signed, body=signed.body[:-1] + b"\x00")
    with pytest.raises(RemoteProtocolError, match="expected a signature of the key"):
        open_evidence(changed)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (packed(evidence(2, 1)), "rounds in their order"),
        (packed(evidence(1, 1)), "rounds in their order"),
        (packed(evidence()), "length >= 1"),
        (packed(evidence(*range(AUDITS_MAX + 1))), "MessagePack"),
        (packed(evidence(1, agreement=10_001)), "<= 10000"),
        (packed(msgspec.structs.replace(evidence(1), author=PeerId("x"))), "expected"),
        (b"", "MessagePack"),
        (bytes(EVIDENCE_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_no_honest_auditor_signs_is_refused(body: bytes, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        open_evidence(resigned(body))


def test_its_words_name_the_shares_and_the_first_rounds() -> None:
    assert words(evidence(120, 131, 140)) == (
        "work audit: agreed in 51 % of signs where honest work agrees in 81 %; round 120, 131, 140"
    )
    many = words(evidence(*range(0, 700, 100)))
    assert "agrees in 80 to 86 %" in many
    assert many.endswith("round 0, 100, 200, 300, 400 and 2 more")
    assert len(many.encode()) <= 256, "it is the reason in a heartbeat's reply"
