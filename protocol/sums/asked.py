"""What a summer is asked to add, and its signature under what it found.

Whoever adds a range signs the digest of its result together with the digest of the question: run,
round, range, and the authors with the roots of their payloads. So who signs a wrong sum proves it:
the parts follow from the roots, and anyone who has them adds again.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.codec.commit_sums import RangeSum, Sums
from protocol.codec.commits import Commit
from protocol.codec.messagepack import packed
from protocol.handshake import verify
from protocol.ids import Digest, PeerId, RunId, sha256

_DOMAIN: Final = b"lockstep.sum.v1"


@dataclass(frozen=True, slots=True)
class SumAuthor:
    """An author of a round whose set is fixed."""

    author: PeerId

    root: Digest
    """The name of its payload (`protocol.sums.part_list`)."""

    samples: int
    """Its weight: samples that the round counts for it, at least 1."""


@dataclass(frozen=True, slots=True)
class Question:
    """One range of one round, to be added."""

    run_id: RunId
    round: int
    learning_rate_bits: int
    """The rate of the step that the round makes, as the bits of a float32."""

    authors: tuple[SumAuthor, ...]
    """All entries of the commit, sorted."""

    ranges: int
    """Ranges into which the chunks are cut."""

    number: int
    """Which of them."""

    silent: tuple[int, ...] = ()
    """Authors, by their places, that have no part in it."""

    @property
    def digest(self) -> Digest:
        """The name of the question."""
        return sha256(packed(msgspec.to_builtins(self, builtin_types=(bytes,))))


def question_behind(commit: Commit, sums: Sums, result: RangeSum) -> Question:
    """What the summers of a committed result were asked."""
    return question_about(commit, sums.ranges, result.number, result.silent)


def question_about(commit: Commit, ranges: int, number: int, silent: tuple[int, ...]) -> Question:
    """What the summers of a range were asked whose round came to this commit."""
    authors = tuple(SumAuthor(each.author, each.digest, each.weight) for each in commit.entries)
    about = commit.run_id, commit.round, commit.learning_rate_bits, authors
    return Question(*about, ranges, number, silent)


def sign_sum(question: Question, result: Digest, key: Ed25519PrivateKey) -> bytes:
    """A summer's word that this is the digest of what it found."""
    return key.sign(_signed(question, result))


def summer_of(question: Question, result: Digest, public_key: bytes, signature: bytes) -> PeerId:
    """The node that has signed this; `RemoteProtocolError` if none has."""
    return verify(public_key, signature, _signed(question, result))


def _signed(question: Question, result: Digest) -> bytes:
    return _DOMAIN + question.digest + result


def places(bits: int, count: int) -> tuple[int, ...]:
    """The places below `count` whose bits are set."""
    return tuple(place for place in range(count) if bits >> place & 1)


def bits_of(places: Sequence[int]) -> int:
    """A number in which the bits of these places are set."""
    return sum(1 << place for place in set(places))
