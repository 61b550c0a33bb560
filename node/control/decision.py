"""The end of one round, as the coordinator has decided it."""

from collections.abc import Iterable
from dataclasses import dataclass

from protocol.codec.chain import ChainEntry
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId


@dataclass(frozen=True, slots=True)
class Decision:
    """The end of a round."""

    round: int
    commit: Commit | None
    """None: the round was skipped."""
    holders: tuple[tuple[PeerId, ...], ...] = ()
    """`holders[i]` are known to hold `commit.needed[i]`."""
    recorded_digest: int | None = None
    """State digest after the round by the majority; None when it is not known."""
    reason: str = ""
    """Why the round was skipped."""
    snapshot_sha256: bytes = b""
    """SHA-256 of the snapshot after the round; empty when none is recorded."""
    voids: frozenset[Digest] = frozenset()
    """Payloads or results of the commit that are void: they count for nothing."""
    before: tuple[ChainEntry, ...] = ()
    """Entries of the chain between this commit and the one before it."""
    is_author: bool | None = None
    """In a round with sums: whether this node is one of the authors, as its session told; None when
    the commit came otherwise, for it does not name them."""

    @property
    def kept(self) -> list[Digest]:
        """The payloads or results that count, in the commit's order."""
        needed = self.commit.needed if self.commit else ()
        return [each.digest for each in needed if each.digest not in self.voids]

    @property
    def stays(self) -> list[Digest] | None:
        """What stays of what a node holds of the round: see `Commit.staying`."""
        return self.commit.staying(self.voids) if self.commit else []

    def counts(self, own: Digest) -> bool | None:
        """Whether a payload that this node has announced counts; None: not known."""
        return self.is_author if self.commit and self.commit.sums else own in self.kept

    def wanted(self, own: PeerId) -> tuple[Commit, tuple[tuple[PeerId, ...], ...]]:
        """The commit with only what counts for this node, and its holders."""
        assert self.commit is not None, "a skip wants nothing"
        digests = self._needed(own)
        pairs = zip(self.commit.needed, self.holders, strict=True)
        holders = tuple(peers for each, peers in pairs if each.digest in digests)
        return self.commit.only(digests), holders

    def filled(self, blobs: Iterable[bytes], own: PeerId) -> list[bytes]:
        """What was collected, in the order of `Commit.needed`: empty where it is not `wanted`."""
        needed = self.commit.needed if self.commit else ()
        digests, collected = self._needed(own), iter(blobs)
        return [next(collected) if each.digest in digests else b"" for each in needed]

    def _needed(self, own: PeerId) -> set[Digest]:
        needed = self.commit.needed_by(own) if self.commit else ()
        return {each.digest for each in needed} - self.voids
