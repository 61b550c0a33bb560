"""Evidence of an auditor: one encoding, a signature, bounds, and words for people."""

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.audit.lots import Draw
from protocol.codec.evidence import (
    AUDITS_MAX,
    COMPANIONS_MAX,
    EVIDENCE_BYTES_MAX,
    Companion,
    CopySource,
    Cross,
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
OTHER = PeerId("ef" * 16)


def evidence(*rounds: int, agreement: int = 5100) -> Evidence:
    audits = tuple(
        WorkAudit(round, sha256(b"%d" % round), agreement, 8000 + round) for round in rounds
    )
    return Evidence(RUN, AUTHOR, "other work", audits)


def beside(*authors: PeerId, agreement: int = 9000, draw: Draw | None = None) -> Evidence:
    """Evidence of one audit with these companions."""
    panel = tuple(Companion(each, sha256(each.encode()), agreement, 4736) for each in authors)
    (row,) = evidence(1).audits
    row = msgspec.structs.replace(row, compared=4736, companions=panel, draw=draw)
    return Evidence(RUN, AUTHOR, "less work", (row,), 500)


def copied(*rounds: int, source: int = 0, of: PeerId = OTHER) -> Evidence:
    named = CopySource(of, source, sha256(b"source"))
    rows = [msgspec.structs.replace(row, source=named) for row in evidence(*rounds).audits]
    return Evidence(RUN, AUTHOR, "copied work", tuple(rows))


def crossed(
    own: int = 10, *, source: int = 7, of: PeerId = OTHER, digest: bytes = b"s"
) -> Evidence:
    """Evidence of a copy of the same round."""
    (row,) = evidence(7).audits
    named = CopySource(of, source, sha256(digest))
    row = msgspec.structs.replace(row, source=named, cross=Cross(100, own))
    return Evidence(RUN, AUTHOR, "copied work", (row,))


def unsourced(said: Evidence) -> Evidence:
    rows = tuple(msgspec.structs.replace(row, source=None) for row in said.audits)
    return msgspec.structs.replace(said, audits=rows)


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
    source = CopySource(OTHER, 2**62 - AUDITS_MAX - 2, sha256(b"source"))
    rows = tuple(
        msgspec.structs.replace(row, expected=10_000, source=source) for row in long.audits
    )
    widest = msgspec.structs.replace(long, finding="copied work", audits=rows)
    signed = sign_evidence(widest, KEY)
    assert len(signed.body) <= EVIDENCE_BYTES_MAX
    open_evidence(signed)


def test_the_longest_evidence_about_work_fits_its_bound() -> None:
    rounds = range(2**62 - 1 - AUDITS_MAX, 2**62 - 1)
    panel = tuple(
        Companion(PeerId(f"{place:032x}"), sha256(b""), 10_000, 2**40 - 1)
        for place in range(COMPANIONS_MAX)
    )
    rows = tuple(
        msgspec.structs.replace(
            row,
            expected=10_000,
            compared=2**40 - 1,
            companions=panel,
            draw=Draw(bytes(64), 10_000),
        )
        for row in evidence(*rounds).audits
    )
    signed = sign_evidence(Evidence(RUN, AUTHOR, "less work", rows, 10_000), KEY)
    assert len(signed.body) <= EVIDENCE_BYTES_MAX
    open_evidence(signed)


def test_evidence_of_an_earlier_release_is_read_as_it_was_signed() -> None:
    body = packed(
        {
            "run_id": RUN,
            "author": AUTHOR,
            "finding": "other work",
            "audits": [
                {"round": 7, "digest": sha256(b"7"), "agreement": 5100, "expected": 8007},
            ],
        }
    )
    assert open_evidence(resigned(body))[1] == evidence(7)


def test_an_auditor_that_draws_oftener_than_usual_is_said_to() -> None:
    assert "drawn" not in words(beside(OTHER, draw=Draw(bytes(64), 200)))
    assert "agrees in 80 %, drawn for 40 % of all compute; round 1" in words(
        beside(OTHER, draw=Draw(bytes(64), 4000))
    )


def test_companions_spread_and_draw_come_back() -> None:
    said = beside(OTHER, PeerId("12" * 16), draw=Draw(bytes(64), 200))
    assert open_evidence(sign_evidence(said, KEY))[1] == said


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
        (packed(evidence(1, agreement=-1)), ">= 0"),
        (packed(beside(OTHER, OTHER)), "each author once in the panel of round 1"),
        (packed(beside(OTHER, draw=Draw(bytes(63), 200))), "length >= 64"),
        (packed(beside(OTHER, draw=Draw(bytes(64), 0))), ">= 1"),
        (packed(crossed(101)), "at most 100 signs of the author's own gradient, got 101"),
        (packed(crossed(-1)), ">= 0"),
        (packed(crossed(source=6)), "another author's payload of round 7"),
        (packed(crossed(of=AUTHOR)), "another author's payload of round 7"),
        (packed(crossed(digest=b"7")), "another author's payload of round 7"),
        (packed(unsourced(crossed())), "expected a source beside the copy, got none"),
        (packed(beside(AUTHOR)), "each author once in the panel of round 1"),
        (packed(beside(*(PeerId(f"{n:032x}") for n in range(COMPANIONS_MAX + 1)))), "length <= 3"),
        (packed(beside(OTHER, agreement=10_001)), "<= 10000"),
        (packed(beside(PeerId("x"))), "expected"),
        (packed(msgspec.structs.replace(beside(OTHER), spread=-1)), ">= 0"),
        (packed(msgspec.structs.replace(evidence(1), author=PeerId("x"))), "expected"),
        (packed(msgspec.structs.replace(evidence(1), finding="copied work")), "with none"),
        (packed(msgspec.structs.replace(copied(1), finding="less work")), "with one"),
        (packed(copied(4, source=4)), "expected a source before round 4"),
        (packed(copied(4, source=9, of=AUTHOR)), "expected a source before round 4"),
        (packed(copied(4, of=PeerId("x"))), "expected"),
        (b"", "MessagePack"),
        (bytes(EVIDENCE_BYTES_MAX + 1), "at most"),
    ],
)
def test_what_no_honest_auditor_signs_is_refused(body: bytes, expected: str) -> None:
    with pytest.raises(RemoteProtocolError, match=expected):
        open_evidence(resigned(body))


def test_copies_come_back_with_their_sources_and_other_evidence_has_no_word_of_any() -> None:
    said = copied(120, 131, 140, source=119)
    assert open_evidence(sign_evidence(said, KEY))[1] == said
    assert words(said) == "work audit: 51 % of it copied from efefefef; round 120, 131, 140"
    own = copied(120, source=119, of=AUTHOR)
    assert "51 % of it copied from its own earlier payloads" in words(own)
    assert b"source" not in sign_evidence(evidence(1), KEY).body


def test_a_payload_of_another_header_may_have_its_source_in_the_same_round() -> None:
    (row,) = evidence(7).audits
    named = msgspec.structs.replace(row, source=CopySource(OTHER, 7, row.digest))
    said = Evidence(RUN, AUTHOR, "copied work", (named,))
    assert open_evidence(sign_evidence(said, KEY))[1] == said


def test_a_copy_of_its_own_round_comes_back_with_what_tells_it_from_its_source() -> None:
    assert open_evidence(sign_evidence(crossed(), KEY))[1] == crossed()


def test_its_words_name_the_shares_and_the_first_rounds() -> None:
    assert words(evidence(120, 131, 140)) == (
        "work audit: agreed in 51 % of signs where honest work agrees in 81 %; round 120, 131, 140"
    )
    many = words(evidence(*range(0, 700, 100)))
    assert "agrees in 80 to 86 %" in many
    assert many.endswith("round 0, 100, 200, 300, 400 and 2 more")
    assert len(many.encode()) <= 256, "it is the reason in a heartbeat's reply"
