"""The coordinator's decisions in order, whether they come over the session or are fetched later.

    committed, skipped (session) --> waiting --.
    GetCommits (if no session told it) -------> next: round by round, each checked once

Every round ends in exactly one decision: a commit or a skip. A decision that no session delivered,
because the session was lost or the node joined later, is fetched from the coordinator and checked
against its signature and the hash chain. A decision that `next` returns has been checked.

The chain has other entries than commits: a void takes a payload out of an earlier commit. It is
known here when it comes, with the session, or with a commit, which brings the entries in front of
it and copies of those that are about it. A void for a round that is not applied yet is obeyed when
the round is; one that turns up for a round which was applied with the payload makes the state
`outdated`, and the node must replay the log.

A restart replaces the state behind the newest commit by a checkpoint. The log stops in front of it
(`restart`) until it is resumed at a place behind the entry, where the checkpoint stands. A walk
that looks for that place (`walks`) passes over it and notes it.

    taken by `next` --a void comes: `changed`, `again`--> taken --`settled`--> applied
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from node.control.decision import Decision
from protocol import wire_pb2 as wire
from protocol.codec.chain import (
    ChainEntry,
    Reschedule,
    Restart,
    SignedEntry,
    Void,
    entry_digest,
    open_entry,
)
from protocol.codec.commits import (
    Commit,
    SignedCommit,
    check_link,
    commit_digest,
    genesis_digest,
    open_commit,
)
from protocol.codec.heads import Heads
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, RunId, parse_peer_id
from protocol.limits import COMMITS_PER_REPLY, MEMBERS_MAX

WAITING_MAX = 256
"""Decisions from the session that may wait; more are fetched again when their turn comes."""

FETCHED_MAX = 4096
"""Decisions taken from one reply: bounds the memory that a coordinator can fill by claiming many
skipped rounds."""

ENTRIES_MAX = 4096
"""Entries of the chain beside commits that are remembered; the oldest go first, and are fetched
again when their turn comes."""


class Place(Protocol):
    """A place in the chain to go on from, as `node.replica.position.Position` is one."""

    @property
    def next_round(self) -> int:
        """First round whose decision is not taken."""

    @property
    def head(self) -> Digest:
        """Digest of the last entry of the chain that was taken, commit or other."""

    @property
    def head_round(self) -> int:
        """Round of the last commit that was taken."""

    @property
    def voids(self) -> frozenset[tuple[int, Digest]]:
        """Payloads that were passed over because of voids which lie further on in the chain."""

    @property
    def void_count(self) -> int:
        """Payloads that were passed over, and restarts from a checkpoint, in all."""


@dataclass(frozen=True, slots=True)
class _Place:
    next_round: int
    head: Digest
    head_round: int
    voids: frozenset[tuple[int, Digest]] = frozenset()
    void_count: int = 0


class DecisionLog:
    """Hands out the decisions of rounds `next_round`, `next_round + 1`, and so on."""

    def __init__(
        self,
        run_id: RunId,
        coordinator_key: bytes,
        fetch: Callable[[int], Awaitable[wire.Commits]],
        *,
        walks: bool = False,
        heads: Heads | None = None,
    ) -> None:
        """`fetch(after_round)` asks the coordinator until it answers; `walks`: there is no state
        that a restart would replace. `heads` are told every commit.
        """
        self._walks, self._heads = walks, heads or Heads(run_id, coordinator_key)
        self._newest_restart: tuple[Restart, Digest] | None = None
        """The newest restart that is known, with the entry's digest."""
        self.passed: list[tuple[Restart, Place]] = []
        """Restarts that a walk has passed over, each with the place behind it."""
        self._fetch = fetch
        self._waiting: dict[int, Decision] = {}
        self._fetched: deque[Decision] = deque()
        self._entries: dict[Digest, ChainEntry] = {}
        """Entries by the digest of the one before them."""
        self._arrived, self._void_came = asyncio.Event(), asyncio.Event()
        self.decided_round = -1
        self.rewind()

    def rewind(self) -> None:
        """Start again at genesis."""
        self.resume(_Place(0, genesis_digest(self._heads.run_id), -1))

    def resume(self, place: Place) -> None:
        """Continue at a place: after a saved state, or at an earlier one to take a decision
        again.
        """
        self._place = _Place(
            place.next_round, place.head, place.head_round, place.voids, place.void_count
        )
        self.outdated = ""
        """Why the state is not the one that the chain makes, in words; empty when it is."""
        self._in_hand = -1
        self._fetched.clear()

    @property
    def next_round(self) -> int:
        """The round whose decision `next` takes."""
        return self._place.next_round

    @property
    def head_round(self) -> int:
        """The round of the last commit that was taken."""
        return self._place.head_round

    @property
    def place(self) -> Place:
        """The place in the chain behind the last decision that was taken."""
        return self._place

    @property
    def restart(self) -> Restart | None:
        """The restart behind this place that replaces the state; None when there is none."""
        if self._newest_restart is None or self._walks:
            return None
        restart, digest = self._newest_restart
        passed = self.head_round > restart.round or self._place.head in self._behind(digest)
        return None if passed else restart

    def know(self, other: "DecisionLog") -> None:
        """Take over the entries of the chain that another log knows."""
        for entry in other._entries.values():
            self._remember(entry)
        self._follow()

    # ---- from the session

    def saw_decided(self, round: int) -> None:
        """The coordinator says that every round up to this one is decided."""
        self.decided_round = max(self.decided_round, round)
        self._arrived.set()

    def committed(self, message: wire.RoundCommitted) -> None:
        """Take a commit from the session."""
        commit, before = self._opened(message.commit)
        if len(message.holders) != len(commit.needed):
            raise RemoteProtocolError(
                f"round {commit.round}: expected the holders of {len(commit.needed)} payloads, "
                f"got those of {len(message.holders)}"
            )
        holders = tuple(
            tuple(map(parse_peer_id, row.peer_ids[:MEMBERS_MAX])) for row in message.holders
        )
        told = message.is_author if commit.sums else None
        self._add(Decision(commit.round, commit, holders, before=before, is_author=told))

    def skipped(self, message: wire.RoundSkipped) -> None:
        """Take a skip from the session."""
        self._add(Decision(message.round, None, reason=message.reason))

    def chained(self, entries: Iterable[wire.ChainEntry]) -> None:
        """Take entries of the chain from the session; afterwards the state may be `outdated`, or a
        `restart` replaces it.
        """
        for entry in entries:
            self._remember(self._entry(entry))
        self._follow()
        self._void_came.set()

    def _add(self, decision: Decision) -> None:
        if len(self._waiting) < WAITING_MAX:
            self._waiting[decision.round] = decision
        self.saw_decided(decision.round)

    # ---- for the trainer

    def behind(self) -> bool:
        """Whether a decision is out that was not taken."""
        return self.next_round <= self.decided_round

    def at_hand(self) -> Decision | None:
        """The decision that `next` would take, if the session has brought it."""
        return self._waiting.get(self.next_round)

    async def next(self) -> Decision:
        """Take the decision of `next_round`; waits for it if need be. The state may be `outdated`
        afterwards. When a `restart` replaces it, the decision is not taken.

        Raises `RemoteProtocolError` when a signature or the chain does not hold.
        """
        while not self.behind():
            self._arrived.clear()
            await self._arrived.wait()
        decision = self._waiting.pop(self.next_round, None) or await self._next_fetched()
        self._in_hand = -1
        for entry in decision.before:
            self._remember(entry)
        if self.restart:
            return decision
        if decision.commit is None:
            self._place = replace(self._place, next_round=decision.round + 1)
        else:
            decision = self._take(decision, decision.commit)
        for stale in [round for round in self._waiting if round < self.next_round]:
            del self._waiting[stale]
        return decision

    def _take(self, decision: Decision, commit: Commit) -> Decision:
        """Check the commit's place in the chain, and pass over what is void in it."""
        self._follow(commit.previous)
        check_link(commit, self._heads.run_id, self._place.head, self.head_round)
        head, self._in_hand = commit_digest(commit), decision.round
        self._place = replace(
            self._place, next_round=decision.round + 1, head=head, head_round=decision.round
        )
        return self.again(decision)

    def again(self, decision: Decision) -> Decision:
        """The decision that was taken last, and not `settled`, with the voids that have come since
        too.
        """
        self._void_came.clear()
        named = {each.digest for each in decision.commit.needed} if decision.commit else set()
        fresh = (named & self._voids_of(decision.round)) - decision.voids
        place = self._place
        ahead = place.voids | {(decision.round, digest) for digest in fresh}
        self._place = replace(place, voids=ahead, void_count=place.void_count + len(fresh))
        self._follow()
        return replace(decision, voids=decision.voids | fresh)

    async def changed(self, decision: Decision) -> None:
        """Wait until a payload of the decision in hand has become void, or a `restart` replaces
        the state.
        """
        wanted = set(decision.kept)
        while not (self.restart or self._voids_of(decision.round) & wanted):
            self._void_came.clear()
            await self._void_came.wait()

    def settled(self) -> None:
        """The decision that was taken last is applied from now on: a void for it comes too late."""
        self._in_hand = -1
        self._follow()

    # ---- the chain

    def _voids_of(self, round: int) -> set[Digest]:
        entries = self._entries.values()
        return {each.digest for each in entries if isinstance(each, Void) and each.round == round}

    def _remember(self, entry: ChainEntry) -> None:
        self._entries.setdefault(entry.previous, entry)
        if isinstance(entry, Restart):
            newest = self._newest_restart
            if newest is None or entry.round > newest[0].round or entry.previous == newest[1]:
                self._newest_restart = entry, entry_digest(entry)
        while len(self._entries) > ENTRIES_MAX:
            del self._entries[next(iter(self._entries))]

    def _behind(self, digest: Digest) -> Iterator[Digest]:
        """The digests of an entry and of those that are known to follow it before a commit."""
        yield digest
        while entry := self._entries.get(digest):
            yield (digest := entry_digest(entry))

    def _follow(self, until: Digest | None = None) -> None:
        """Go on along the chain, over the entries that are no commits."""
        while self._place.head != until and (void := self._entries.get(self._place.head)):
            if isinstance(void, Restart):
                if not self._walks:
                    return  # the state must be replaced first
                count = self._place.void_count + 1
                self._place = replace(self._place, head=entry_digest(void), void_count=count)
                self.passed.append((void, self._place))
                continue
            if isinstance(void, Reschedule):  # commits carry their own rates: nothing changes here
                self._place = replace(self._place, head=entry_digest(void))
                continue
            payload = void.round, void.digest
            if void.round == self._in_hand and payload not in self._place.voids:
                return  # `again` takes it first
            if payload not in self._place.voids:
                self.outdated = f"a payload of round {void.round} that it counts is void"
            ahead = self._place.voids - {payload}
            self._place = replace(self._place, head=entry_digest(void), voids=ahead)

    async def _next_fetched(self) -> Decision:
        while self._fetched and self._fetched[0].round < self.next_round:
            self._fetched.popleft()  # the session told this one too
        if not self._fetched:
            await self._fetch_more()
        return self._fetched.popleft()

    async def _fetch_more(self) -> None:
        """Fetch decisions from `next_round` on, as many as one reply holds."""
        reply = await self._fetch(self.next_round - 1)
        commits = {}
        for message in reply.commits[:COMMITS_PER_REPLY]:
            commit, before = self._opened(message)
            commits[commit.round] = Decision(
                commit.round,
                commit,
                holders=tuple(() for _ in commit.needed),
                recorded_digest=message.state_digest if message.digest_reports else None,
                snapshot_sha256=message.snapshot_sha256,
                before=before,
            )
        for entry in reply.tail:
            self._remember(self._entry(entry))
        full = len(commits) == COMMITS_PER_REPLY
        last = max(commits) if full else reply.decided_round
        last = min(last, self.next_round + FETCHED_MAX - 1)
        if last < self.next_round:
            raise RemoteProtocolError(
                f"expected the decision of round {self.next_round} from the coordinator, "
                f"got those up to round {last}"
            )
        for round in range(self.next_round, last + 1):
            self._fetched.append(commits.get(round) or Decision(round, None))

    def _opened(self, message: wire.Committed) -> tuple[Commit, tuple[ChainEntry, ...]]:
        """The commit, checked, and the entries in front of it. The voids for it that lie further
        on in the chain are remembered.
        """
        signed = SignedCommit(message.body, message.signature)
        commit = open_commit(signed, self._heads.coordinator_key)
        self._heads.take(commit, signed)
        for entry in message.voids:
            self._remember(self._entry(entry))
        before = tuple(map(self._entry, message.before))
        for each in before:
            if isinstance(each, Restart):
                self._remember(each)  # what comes before it need not be replayed
        return commit, before

    def _entry(self, entry: wire.ChainEntry) -> ChainEntry:
        key, run_id = self._heads.coordinator_key, self._heads.run_id
        return open_entry(SignedEntry(entry.body, entry.signature), key, run_id)
