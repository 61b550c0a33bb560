"""The entries of a chain beside commits, as an audit meets them.

A record brings copies of the voids with the commit that they are about, which lies before them in
the chain. The audit passes over these payloads at once, and holds the record to it: each copy must
turn up in the chain later, and no void may turn up that was not obeyed. A restart from a checkpoint
is met at its place in the chain.
"""

from collections.abc import Iterable

from protocol import wire_pb2 as wire
from protocol.codec.chain import (
    ChainEntry,
    Reschedule,
    Restart,
    SignedEntry,
    Void,
    linked,
    open_entry,
)
from protocol.codec.commits import Commit
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest
from protocol.run_info import RunInfo


class UnannouncedVoidError(RemoteProtocolError):
    """The chain holds a void that its commit did not announce; `void` is the payload's round and
    digest.
    """

    def __init__(self, void: Void) -> None:
        super().__init__(
            f"expected only voids that their commits announce, got one of round "
            f"{void.round}: {void.digest.hex()[:16]}"
        )
        self.void = (void.round, void.digest)


class VoidBook:
    """The voids of one walk through a chain. All methods raise `RemoteProtocolError` for entries
    that the coordinator did not sign or that are out of place.
    """

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._ahead: dict[tuple[int, Digest], Void | None] = {}
        """None: the void was obeyed before `resume`, and its copy is not here any more."""
        self.restarts: list[Restart] = []
        """Restarts that were met and not obeyed yet, oldest first."""
        self.schedules: list[Reschedule] = []
        """Changes of the schedule that were met and not noted yet, oldest first."""
        self.found = 0
        """Voids that the chain holds, so far."""

    @property
    def ahead(self) -> list[int]:
        """Rounds with voids that were obeyed and not met in the chain yet, ascending."""
        return sorted(round for round, _ in self._ahead)

    @property
    def unmet(self) -> frozenset[tuple[int, Digest]]:
        """Payloads (round, digest) whose voids were obeyed and not met in the chain yet."""
        return frozenset(self._ahead)

    @property
    def found_or_unmet(self) -> int:
        """Payloads that were passed over in all."""
        return self.found + len(self._ahead)

    def resume(self, unmet: Iterable[tuple[int, Digest]], passed_over: int) -> None:
        """Go on where `unmet` and `found_or_unmet` were these."""
        self._ahead = dict.fromkeys(unmet)
        self.found = passed_over - len(self._ahead)

    def obey(self, commit: Commit, copies: Iterable[wire.ChainEntry]) -> frozenset[Digest]:
        """The payloads of a commit that are void."""
        named = {entry.digest for entry in commit.entries}
        for void in map(self._opened, copies):
            if not isinstance(void, Void) or void.round != commit.round or void.digest not in named:
                raise RemoteProtocolError(
                    f"expected voids of payloads of round {commit.round}, got {void}"
                )
            self._ahead[void.round, void.digest] = void
        return frozenset(digest for round, digest in self._ahead if round == commit.round)

    def walk(
        self, head: Digest, entries: Iterable[wire.ChainEntry], before: Commit | None = None
    ) -> Digest:
        """Go on in the chain from `head`, over `entries`; returns the digest of the last one, which
        the commit `before` must name.
        """
        chain, head = linked(head, map(self._opened, entries), before)
        for void in chain:
            if isinstance(void, Restart):
                self.restarts.append(void)
                continue
            if isinstance(void, Reschedule):
                self.schedules.append(void)
                continue
            payload = void.round, void.digest
            if payload not in self._ahead or self._ahead.pop(payload) not in (void, None):
                raise UnannouncedVoidError(void)
            self.found += 1
        return head

    def _opened(self, entry: wire.ChainEntry) -> ChainEntry:
        return open_entry(
            SignedEntry(entry.body, entry.signature), self._info.coordinator_key, self._info.run_id
        )
