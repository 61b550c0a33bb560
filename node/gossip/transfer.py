"""One payload on its way here: the parts that arrived, checked as they come, and their sources.
Pure.

A transfer goes on where it stopped, from another source too. When bytes of several sources do not
fit together no single source can be blamed, so the transfer starts again and mixes no more.
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
    """Bytes of the whole, as the sources state them; None before the first part."""
    sources: set[PeerId] = field(default_factory=set)
    alone: bool = False
    """Take bytes of one source only: those of several did not fit."""
    discarded: int = 0
    """Bytes that arrived and were thrown away."""

    @property
    def complete(self) -> bool:
        """Whether all parts are here; the digest is not checked yet."""
        return self.total == len(self.buffer)

    def begin(self, source: PeerId) -> int:
        """Let `source` go on; returns the offset. Bytes of another are thrown away if `alone`."""
        if self.alone and not self.sources <= {source}:
            self.restart(alone=True)
        return len(self.buffer)

    def append(self, part: Part, source: PeerId, size: int | None) -> bool:
        """Append the next part. The whole must have `size` bytes; None: any size up to the bound.

        Returns whether all parts are here now. Raises `RemoteProtocolError` for a part that is not
        the next one, or of a whole of another size.
        """
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
        rest = total - len(self.buffer)
        if part.offset != len(self.buffer) or not 1 <= len(part.data) <= rest:
            found = f"{len(part.data)} bytes at {part.offset}"
            raise RemoteProtocolError(
                f"expected a part of 1..{rest} bytes at {len(self.buffer)}, got {found}"
            )

    def restart(self, alone: bool) -> None:
        """Throw away the bytes that have arrived."""
        self.discarded += len(self.buffer)
        self.buffer, self.total, self.sources, self.alone = bytearray(), None, set(), alone
