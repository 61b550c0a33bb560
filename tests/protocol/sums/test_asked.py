"""What a summer signs."""

from dataclasses import replace

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id, sha256
from protocol.sums.asked import Question, SumAuthor, bits_of, places, sign_sum, summer_of

KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))
AUTHORS = tuple(SumAuthor(PeerId(letter * 32), sha256(letter.encode()), 4) for letter in "ab")
QUESTION = Question(RunId("ab" * 16), 3, 7, AUTHORS, 16, 5, (1,))
RESULT = sha256(b"result")


def test_who_signed_a_sum_is_known() -> None:
    signature = sign_sum(QUESTION, RESULT, KEY)
    signer = summer_of(QUESTION, RESULT, public_bytes(KEY), signature)
    assert signer == peer_id(public_bytes(KEY))


@pytest.mark.parametrize(
    "other",
    [
        replace(QUESTION, run_id=RunId("cd" * 16)),
        replace(QUESTION, round=4),
        replace(QUESTION, learning_rate_bits=8),
        replace(QUESTION, authors=AUTHORS[:1]),
        replace(QUESTION, authors=(AUTHORS[0], replace(AUTHORS[1], samples=5))),
        replace(QUESTION, authors=(AUTHORS[0], replace(AUTHORS[1], root=sha256(b"x")))),
        replace(QUESTION, ranges=32),
        replace(QUESTION, number=6),
        replace(QUESTION, silent=()),
    ],
)
def test_a_signature_is_for_one_question(other: Question) -> None:
    signature = sign_sum(QUESTION, RESULT, KEY)
    with pytest.raises(RemoteProtocolError, match="another one"):
        summer_of(other, RESULT, public_bytes(KEY), signature)


def test_a_signature_is_for_one_result() -> None:
    signature = sign_sum(QUESTION, RESULT, KEY)
    with pytest.raises(RemoteProtocolError, match="another one"):
        summer_of(QUESTION, sha256(b"other"), public_bytes(KEY), signature)


def test_places_are_bits() -> None:
    assert bits_of((0, 5, 63)) == 1 | 1 << 5 | 1 << 63
    assert places(bits_of((0, 5, 63)), 64) == (0, 5, 63)
    assert places(bits_of((0, 5, 63)), 16) == (0, 5), "bits beyond are nobody's"
