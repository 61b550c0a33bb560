"""What a commit says of a round whose payloads were added by summers (`protocol.sums`).

    results       what nodes fetch in place of payloads, a few for each round
    authors       what a step by results needs to know of those who made the payloads
    author_list   the name of the list of them, which whoever audits fetches beside the commit

So a commit is as large for a thousand authors as for ten.
"""

from dataclasses import dataclass

from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, parse_digest
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT, WEIGHTS_MAX
from protocol.sums.ranges import RANGES_MAX

WEIGHT_SUM_MAX = WEIGHTS_MAX + MEMBERS_MAX
"""W at most: each author may be rounded up to 1."""


@dataclass(frozen=True, slots=True)
class RangeSum:
    """What the authors of a commit moved together in one range of chunks: the result that summers
    agreed on.
    """

    number: int
    digest: Digest
    payload_bytes: int
    silent: tuple[int, ...] = ()
    """Entries, by their places, that have no part in it: they say nothing in this range. Told with
    the list of authors alone."""

    @property
    def title(self) -> str:
        """What it names, in words."""
        return f"the sum of range {self.number}"


@dataclass(frozen=True, slots=True)
class AuthorSet:
    """The authors whose movements are summed, as far as a step needs to know them."""

    count: int
    """All of them."""

    moving: int
    """Those of whom a scale counts."""

    weight_sum: int
    """W of those, at least 1."""

    code_max: int
    """Code of the largest scale that one of them may have; below 0 nothing moves."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The results of a round's ranges, in place of its payloads."""

    ranges: int
    """Ranges into which the chunks are cut."""

    results: tuple[RangeSum, ...]
    """By number. A range without one moves nothing: nobody added it."""

    authors: AuthorSet
    author_list: Digest
    """SHA-256 of the list of authors (`protocol.codec.commits.author_list_bytes`)."""


def require_sums(sums: Sums, round: int) -> None:
    """`RemoteProtocolError` unless each range has one result at most, and all is within bounds."""
    numbers = [result.number for result in sums.results]
    if numbers != sorted(set(numbers)) or not 1 <= sums.ranges <= RANGES_MAX:
        raise RemoteProtocolError(
            f"commit of round {round}: expected the results of up to {RANGES_MAX} ranges, sorted "
            f"and once each, got those of {numbers[:RANGES_MAX]} of {sums.ranges}"
        )
    for result in sums.results:
        parse_digest(result.digest)
        if not 1 <= result.payload_bytes <= PAYLOAD_BYTES_LIMIT:
            raise RemoteProtocolError(
                f"commit of round {round}: expected 1..{PAYLOAD_BYTES_LIMIT} bytes in range "
                f"{result.number}, got {result.payload_bytes}"
            )
        if not 0 <= result.number < sums.ranges:
            raise RemoteProtocolError(
                f"commit of round {round}: expected ranges below {sums.ranges}, got {result.number}"
            )
    parse_digest(sums.author_list)
    about = sums.authors
    is_bounded = (
        0 <= about.moving <= about.count
        and 1 <= about.count <= MEMBERS_MAX
        and max(1, about.moving) <= about.weight_sum <= WEIGHT_SUM_MAX
        and -1 <= about.code_max < 2**8
    )
    if not is_bounded:
        raise RemoteProtocolError(
            f"commit of round {round}: expected up to {MEMBERS_MAX} authors of weights up to "
            f"{WEIGHT_SUM_MAX} together and scales of one byte, got {about}"
        )


def require_silent(sums: Sums, round: int) -> None:
    """`RemoteProtocolError` unless those that are silent in a range are some of the authors."""
    for result in sums.results:
        silent, count = result.silent, sums.authors.count
        if list(silent) != sorted(set(silent)) or not all(0 <= each < count for each in silent):
            raise RemoteProtocolError(
                f"commit of round {round}: expected some of {count} authors that say nothing in "
                f"range {result.number}, sorted and once each, got {len(silent)}"
            )
