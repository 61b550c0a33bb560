"""What summers have signed, as the log keeps it beside a commit, and the evidence in it.

    commit, number of the range --> the question --signature--> who found this digest
    parts under the authors' roots --added again--> another digest: that one has signed a wrong sum

So the evidence needs no word of the one who shows it: the summer's own signature, and parts that
others have, say all. A range without a result is in no commit; there the signature comes with its
silent authors, who are in the question that is signed.
"""

from functools import lru_cache
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from protocol.codec.commits import Commit
from protocol.codec.messagepack import converted, packed, unpacked
from protocol.errors import RemoteProtocolError
from protocol.handshake import KEY_BYTES, SIGNATURE_BYTES
from protocol.ids import Digest, PeerId, RunId, parse_digest, peer_id
from protocol.limits import MEMBERS_MAX
from protocol.sums.asked import Question, question_about, summer_of
from protocol.sums.ranges import RANGES_MAX

WRONG_SUM_BYTES_MAX: Final = 16 * 1024
"""Bytes of the longest evidence: the places of `MEMBERS_MAX` silent authors, of 3 bytes each."""

WRONG_SUM: Final = "wrong sum"
"""The word for it, beside the findings of `protocol.codec.evidence`."""

OPENED_KEPT: Final = 64
"""Pieces of evidence that are remembered opened: a mebibyte."""

_TEXT_BYTES_MAX: Final = SIGNATURE_BYTES


class SumSigned(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The digest that a summer has signed for a range of a round."""

    number: Annotated[int, Meta(ge=0, lt=RANGES_MAX)]
    """Place of the range."""
    digest: Digest
    public_key: Annotated[bytes, Meta(min_length=KEY_BYTES, max_length=KEY_BYTES)]
    signature: Annotated[bytes, Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    silent: Annotated[
        tuple[Annotated[int, Meta(ge=0, lt=MEMBERS_MAX)], ...], Meta(max_length=MEMBERS_MAX)
    ] = ()
    """Authors, by their places, without a part in a range that has no result; with one: none, as
    the commit names them."""

    @property
    def summer(self) -> PeerId:
        """The node whose key this is."""
        return peer_id(self.public_key)


class WrongSum(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Evidence: a signed sum, and the digest to which the parts of its authors add up."""

    run_id: RunId
    round: Annotated[int, Meta(ge=0, lt=2**62)]
    signed: SumSigned
    found: Digest


def question_of(commit: Commit, signed: SumSigned) -> Question:
    """The question that a signature is about; `RemoteProtocolError` if the commit has none."""
    sums, silent = commit.sums, signed.silent
    if sums is None or signed.number >= sums.ranges:
        raise RemoteProtocolError(
            f"expected a round with sums of range {signed.number}, got round {commit.round}"
        )
    if settled := next((each for each in sums.results if each.number == signed.number), None):
        silent = settled.silent
    if list(silent) != sorted(set(silent)) or any(at >= len(commit.entries) for at in silent):
        raise RemoteProtocolError(
            f"expected silent authors sorted and below {len(commit.entries)}, got {silent[:8]}"
        )
    return question_about(commit, sums.ranges, signed.number, silent)


def require_signed(commit: Commit, signed: SumSigned) -> None:
    """`RemoteProtocolError` unless the summer has signed this about the commit's round."""
    asked = question_of(commit, signed)
    summer_of(asked, signed.digest, signed.public_key, signed.signature)


def is_signed(commit: Commit, signed: SumSigned) -> bool:
    """Whether the summer has signed this about the commit's round."""
    try:
        require_signed(commit, signed)
    except RemoteProtocolError:
        return False
    return True


def wrong_sum_bytes(evidence: WrongSum) -> bytes:
    """The canonical bytes."""
    return packed(evidence)


@lru_cache(OPENED_KEPT)
def read_wrong_sum(body: bytes) -> WrongSum:
    """The evidence in its bytes, whose signature is not checked here; `RemoteProtocolError` for
    bytes that are not canonical, out of bounds, or say that the sum is right.
    """
    if len(body) > WRONG_SUM_BYTES_MAX:
        raise RemoteProtocolError(
            f"expected a wrong sum in at most {WRONG_SUM_BYTES_MAX} bytes, got {len(body)}"
        )
    plain = unpacked(body, text_bytes_max=_TEXT_BYTES_MAX, items_max=MEMBERS_MAX)
    evidence = converted(plain, WrongSum)
    parse_digest(evidence.signed.digest)
    parse_digest(evidence.found)
    if packed(evidence) != body:
        raise RemoteProtocolError("expected a wrong sum in canonical encoding, got another one")
    if evidence.found == evidence.signed.digest:
        raise RemoteProtocolError("expected a wrong sum, got one that was added to the same digest")
    return evidence


def words(evidence: WrongSum) -> str:
    """What was found, for people."""
    signed = evidence.signed
    return (
        f"sum audit: signed {signed.digest.hex()[:16]} as the sum of range {signed.number} in "
        f"round {evidence.round}, where the parts add up to {evidence.found.hex()[:16]}"
    )
