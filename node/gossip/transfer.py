"""One payload on its way here: the parts that arrived, checked as they come, and from whom. No IO.

A transfer goes on where it stopped, from another source too. When bytes of several sources do not
fit together nobody can be blamed, so the transfer starts again and takes bytes of one source only.
"""

from dataclasses import dataclass, field

from node.links.frames import Part
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId


@dataclass(slots=True)
class Transfer:
    """Bytes of one payload of a round; `size_max` bounds them before memory is taken."""

    round: int
    size_max: int
    buffer: bytearray = field(default_factory=bytearray)
    total: int | None = None
    """Size of the whole as the sources state it; None before the first part."""
    sources: set[PeerId] = field(default_factory=set)
    alone: bool = False
    """Bytes of several sources did not fit: mix no more."""
    discarded: int = 0
    """Bytes that arrived and were thrown away."""

    @property
    def complete(self) -> bool:
        """Whether all parts are here; nothing is known of the digest yet."""
        return self.total == len(self.buffer)

    def begin(self, source: PeerId) -> int:
        """The offset from which `source` goes on."""
        if self.alone and not self.sources <= {source}:
            self.restart(alone=True)
        return len(self.buffer)

    def take(self, part: Part, source: PeerId, size: int | None) -> bool:
        """Append the next part; `size` is what the whole must have, None for anything up to the
        bound.

        Returns whether all parts are here now. Raises `RemoteProtocolError` for a part that is not
        the next one, or of a whole of another size."""
        try:
            self._check(part, size)
        except RemoteProtocolError:
            self.discarded += len(part.data)
            raise
        self.total = part.total_bytes
        self.buffer += part.data
        self.sources.add(source)
        return self.complete

    def _check(self, part: Part, size: int | None) -> None:
        total = part.total_bytes
        if not 1 <= total <= self.size_max or (size is not None and total != size):
            expected = f"1..{self.size_max}" if size is None else size
            raise RemoteProtocolError(f"expected a payload of {expected} bytes, got one of {total}")
        if self.total is not None and total != self.total:
            raise RemoteProtocolError(
                f"expected a payload of {self.total} bytes as before, got one of {total}"
            )
        left = total - len(self.buffer)
        if part.offset != len(self.buffer) or not 1 <= len(part.data) <= left:
            found = f"{len(part.data)} bytes at {part.offset}"
            raise RemoteProtocolError(
                f"expected a part of 1..{left} bytes at {len(self.buffer)}, got {found}"
            )

    def restart(self, alone: bool) -> None:
        """Throw away what has arrived."""
        self.discarded += len(self.buffer)
        self.buffer, self.total, self.sources, self.alone = bytearray(), None, set(), alone
