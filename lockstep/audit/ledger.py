"""The entries of a chain beside commits, as an audit meets them.

A record brings copies of the voids with the commit that they are about, which lies before them in
the chain. The audit passes over these payloads at once, and holds the record to it: each copy must
turn up in the chain later, and no void may turn up that was not obeyed. A restart from a checkpoint
is met at its place in the chain.

A commit carries its own rate, so a replay needs no schedule. But the run file promises one, and
only an entry of the chain may change it: a rate that neither explains is a difference.
"""

import math
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
from protocol.runfile import ScheduleSpec
from protocol.schedule import float32_value, in_force, scalars

TOLERANCE = 1e-4
"""Relative difference of two rates that another release, or another machine's cosine, may make."""


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


class ChainLedger:
    """The entries of one walk through a chain. `obey` and `walk` raise `RemoteProtocolError` for
    entries that the coordinator did not sign or that are out of place.
    """

    def __init__(self, info: RunInfo) -> None:
        self._info = info
        self._ahead: dict[tuple[int, Digest], Void | None] = {}
        """Voids that were obeyed and not met in the chain yet; None: restored by `resume`, where
        only the payload was saved."""
        self._schedule: ScheduleSpec | None = info.spec.schedule
        """The schedule in force; None: not known."""
        self.restarts: list[Restart] = []
        """Restarts that were met and not obeyed yet, oldest first."""
        self.schedules = 0
        """Changes of the schedule that were met."""
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

    def resume(
        self, unmet: Iterable[tuple[int, Digest]], passed_over: int, head_round: int
    ) -> None:
        """Go on behind the commit of a round where `unmet` and `found_or_unmet` were these. What
        was changed of the schedule before it is not known.
        """
        self._ahead = dict.fromkeys(unmet)
        self.found = passed_over - len(self._ahead)
        self._schedule = self._info.spec.schedule if head_round < 0 else None

    def obey(self, commit: Commit, copies: Iterable[wire.ChainEntry]) -> frozenset[Digest]:
        """The payloads or results of a commit that are void."""
        named = {each.digest for each in commit.needed}
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
        for entry in chain:
            match entry:
                case Restart():
                    self.restarts.append(entry)
                case Reschedule():
                    self.schedules += 1
                    self._schedule = in_force(self._info.spec.schedule, [entry])
                case Void():
                    self._meet(entry)
        return head

    def _meet(self, void: Void) -> None:
        payload = void.round, void.digest
        if payload not in self._ahead or self._ahead.pop(payload) not in (void, None):
            raise UnannouncedVoidError(void)
        self.found += 1

    def _opened(self, entry: wire.ChainEntry) -> ChainEntry:
        return open_entry(
            SignedEntry(entry.body, entry.signature), self._info.coordinator_key, self._info.run_id
        )

    def flaw(self, commit: Commit) -> str:
        """Why the commit's step or rate is not the schedule's; empty when it is, or when the
        schedule is not known.
        """
        if self._schedule is None:
            return ""
        if commit.step >= self._schedule.steps:
            return f"step {commit.step} is beyond the {self._schedule.steps} steps of the run"
        wanted = map(float32_value, scalars(self._schedule, commit.step))
        found = map(float32_value, (commit.learning_rate_bits, commit.decay_bits))
        names = ("learning rate", "decay")
        for name, expected, got in zip(names, wanted, found, strict=True):
            if not math.isclose(expected, got, rel_tol=TOLERANCE):
                return (
                    f"its {name} is {got:.6g}; the run file and the operator's signed changes make "
                    f"{expected:.6g}"
                )
        return ""
