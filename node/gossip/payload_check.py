"""Judges a payload before this node says that it holds it: a receipt for bytes that no replica can
apply would let them into a commit.

The check is the one that every replica makes when it applies (`node.replica.replica`): the payload
decodes to the shape of the round, and its header names this run and this round. A relay, which has
no model, knows no shape and reads the header alone. The author in the header goes with the receipt,
so that one payload counts for one author.
"""

from collections.abc import Callable

from cachetools import LRUCache

from protocol.codec.payload_header import Blob, Header
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId

AUTHORS_KEPT = 16_384
"""Payloads whose authors are remembered: those of four undecided rounds of the largest run."""


class PayloadCheck:
    """The check of one run's payloads, and the authors of those that passed it. `check` may be
    called from any thread; `passed` and `author_of` belong to the event loop.
    """

    def __init__(self, run_id: RunId, header_of: Callable[[int, Blob], Header]) -> None:
        """`header_of(round, payload)` decodes a payload, as far as this node can, and returns its
        header; `RemoteProtocolError` for one that does not decode.
        """
        self._run_id, self._header_of = run_id, header_of
        self._authors: LRUCache[Digest, PeerId] = LRUCache(AUTHORS_KEPT)

    def check(self, round: int, payload: Blob) -> PeerId:
        """The author of a payload of this round; `RemoteProtocolError` for bytes that count for
        nothing.
        """
        header = self._header_of(round, payload)
        if (header.run_id, header.round) != (self._run_id, round):
            raise RemoteProtocolError(
                f"expected a payload of run {self._run_id} and round {round}, "
                f"got one of run {header.run_id} and round {header.round}"
            )
        return header.author

    def passed(self, digest: Digest, author: PeerId) -> None:
        """Remember the author of a payload that passed."""
        self._authors[digest] = author

    def author_of(self, digest: Digest) -> PeerId | None:
        """The author of a payload that passed; None for another one."""
        author: PeerId | None = self._authors.get(digest)
        return author
