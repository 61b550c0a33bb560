"""Judges a payload before this node says that it holds it: a receipt for bytes that no replica can
apply would let them into a commit.

The check is the one that every replica makes when it applies (`node.replica.replica`): the payload
decodes to the shape of the round, and its header names this run and this round. A relay, which has
no model, knows no shape and reads the header alone. The author in the header goes with the receipt,
so that one payload counts for one author.

A part of a payload is judged as a payload of its range. Whoever lists another's part has none:
these bytes are not its own, and are thrown away as those of a peer that sends what it should not.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cachetools import LRUCache

from protocol.codec.payload_header import Blob, Header, read_header
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId
from protocol.sums.asked import bits_of, places
from protocol.sums.ranges import RANGES_MAX

AUTHORS_KEPT = 16_384
"""Payloads whose authors are remembered: those of four undecided rounds of the largest run."""


class ForeignPartError(RemoteProtocolError):
    """The bytes are a part of an author that is not one of those that list it."""


class Verdict(NamedTuple):
    """What was found of a payload that passed."""

    author: PeerId
    ranges: int = 0
    """Bits of the ranges whose part it is; none for what is no part."""


class PayloadCheck:
    """The check of one run's payloads, and the authors of those that passed it. `check` and
    `check_part` may be called from any thread; `passed` and `author_of` belong to the event loop.
    """

    def __init__(
        self,
        run_id: RunId,
        header_of: Callable[[int, Blob], Header],
        part_header_of: Callable[[Blob, int, int], Header] = lambda part, *_: read_header(part),
    ) -> None:
        """`header_of(round, payload)` decodes a payload, as far as this node can, and returns its
        header; `RemoteProtocolError` for one that does not decode. `part_header_of(part, number,
        count)` does so with the part for a range, by its number, of as many as `count`.
        """
        self._run_id, self._header_of, self._part_header_of = run_id, header_of, part_header_of
        self._authors: LRUCache[Digest, PeerId] = LRUCache(AUTHORS_KEPT)

    def check(self, round: int, payload: Blob) -> PeerId:
        """The author of a payload of this round; `RemoteProtocolError` for bytes that count for
        nothing.
        """
        header = self._header_of(round, payload)
        self._require_round(header, round)
        return header.author

    def check_part(
        self, round: int, part: Blob, *, count: int, claims: Mapping[PeerId, int]
    ) -> Verdict:
        """The author of a part of this round, which is cut into `count` ranges, and the ranges for
        which it decodes among those that its author lists it for; `claims` are these of all authors
        that list it, as bits. Raises as `check`, and `ForeignPartError`.
        """
        header = read_header(part)
        self._require_round(header, round)
        if header.author not in claims:
            raise ForeignPartError(
                f"expected a part of {', '.join(sorted(claims)[:3])}, got one of {header.author}"
            )
        good, why = list[int](), ""
        for number in places(claims[header.author], min(count, RANGES_MAX)):
            try:
                self._part_header_of(part, number, count)
            except RemoteProtocolError as error:
                why = str(error)
            else:
                good.append(number)
        if not good:
            raise RemoteProtocolError(f"expected the part of a range: {why}")
        return Verdict(header.author, bits_of(good))

    def _require_round(self, header: Header, round: int) -> None:
        if (header.run_id, header.round) != (self._run_id, round):
            raise RemoteProtocolError(
                f"expected a payload of run {self._run_id} and round {round}, "
                f"got one of run {header.run_id} and round {header.round}"
            )

    def passed(self, digest: Digest, author: PeerId) -> None:
        """Remember the author of a payload that passed."""
        self._authors[digest] = author

    def author_of(self, digest: Digest) -> PeerId | None:
        """The author of a payload that passed; None for another one."""
        author: PeerId | None = self._authors.get(digest)
        return author
