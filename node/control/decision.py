"""The end of one round, as the coordinator has decided it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

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
    """`holders[i]` are known to hold the payload of entry i."""
    recorded_digest: int | None = None
    """State digest after the round by the majority; None when it is not known."""
    reason: str = ""
    """Why the round was skipped."""
    snapshot_sha256: bytes = b""
    """SHA-256 of the snapshot after the round; empty when none is recorded."""
    voids: frozenset[Digest] = frozenset()
    """Payloads of the commit that are void: they count for nothing."""
    before: tuple[ChainEntry, ...] = ()
    """Entries of the chain between this commit and the one before it."""

    @property
    def kept(self) -> list[Digest]:
        """The payloads that count, in the commit's order."""
        entries = self.commit.entries if self.commit else ()
        return [entry.digest for entry in entries if entry.digest not in self.voids]

    def wanted(self, own: PeerId) -> tuple[Commit, tuple[tuple[PeerId, ...], ...]]:
        """The commit with only the payloads that count for this node, and their holders."""
        assert self.commit is not None, "a skip wants nothing"
        pairs, needed = zip(self.commit.entries, self.holders, strict=True), self._needed(own)
        wanted = [(entry, peers) for entry, peers in pairs if entry.digest in needed]
        entries = tuple(entry for entry, _ in wanted)
        return replace(self.commit, entries=entries), tuple(peers for _, peers in wanted)

    def filled(self, payloads: Iterable[bytes], own: PeerId) -> list[bytes]:
        """The payloads in the order of the commit's entries: empty for those not `wanted`."""
        entries = self.commit.entries if self.commit else ()
        needed, collected = self._needed(own), iter(payloads)
        return [next(collected) if entry.digest in needed else b"" for entry in entries]

    def _needed(self, own: PeerId) -> set[Digest]:
        entries = self.commit.entries_for(own) if self.commit else ()
        return {entry.digest for entry in entries} - self.voids
