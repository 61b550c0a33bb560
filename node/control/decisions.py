"""The coordinator's decisions in order, whether they come over the session or are fetched later.

    committed, skipped (session) --> waiting --.
    GetCommits (if no session told it) -------> next: round by round, each checked once

Every round ends in exactly one decision: a commit or a skip. A decision that no session delivered,
because the session was lost or the node joined later, is fetched from the coordinator and checked
against its signature and the hash chain. A decision that `next` returns has been checked.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protocol import wire_pb2 as wire
from protocol.codec.commits import (
    Commit,
    SignedCommit,
    check_link,
    commit_digest,
    genesis_digest,
    open_commit,
)
from protocol.errors import RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, parse_peer_id
from protocol.limits import COMMITS_PER_REPLY, MEMBERS_MAX

WAITING_MAX = 256
"""Decisions from the session that may wait; more are fetched again when their turn comes."""

FETCHED_MAX = 4096
"""Decisions taken from one reply: bounds the memory that a coordinator can fill by claiming many
skipped rounds."""


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


class DecisionLog:
    """Hands out the decisions of rounds `next_round`, `next_round + 1`, and so on."""

    def __init__(
        self, run_id: RunId, coordinator_key: bytes, fetch: Callable[[int], Awaitable[wire.Commits]]
    ) -> None:
        """`fetch(after_round)` asks the coordinator until it answers."""
        self._run_id, self._key, self._fetch = run_id, coordinator_key, fetch
        self._waiting: dict[int, Decision] = {}
        self._fetched: deque[Decision] = deque()
        self._arrived = asyncio.Event()
        self.decided_round = -1
        self.rewind()

    def rewind(self) -> None:
        """Start again at genesis."""
        self._start(0, genesis_digest(self._run_id), -1)

    def resume(self, next_round: int, head: Digest, head_round: int) -> None:
        """Continue after a saved state: `head` is the digest of its last commit, of round
        `head_round`.
        """
        self._start(next_round, head, head_round)

    def _start(self, next_round: int, head: Digest, head_round: int) -> None:
        self.next_round, self.head, self.head_round = next_round, head, head_round
        self._fetched.clear()

    # ---- from the session

    def saw_decided(self, round: int) -> None:
        """The coordinator says that every round up to this one is decided."""
        self.decided_round = max(self.decided_round, round)
        self._arrived.set()

    def committed(self, message: wire.RoundCommitted) -> None:
        """Take a commit from the session."""
        commit = self._opened(message.commit)
        if len(message.holders) != len(commit.entries):
            raise RemoteProtocolError(
                f"round {commit.round}: expected the holders of {len(commit.entries)} payloads, "
                f"got those of {len(message.holders)}"
            )
        holders = tuple(
            tuple(map(parse_peer_id, row.peer_ids[:MEMBERS_MAX])) for row in message.holders
        )
        self._add(Decision(commit.round, commit, holders))

    def skipped(self, message: wire.RoundSkipped) -> None:
        """Take a skip from the session."""
        self._add(Decision(message.round, None, reason=message.reason))

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
        """Take the decision of `next_round`; waits for it if need be.

        Raises `RemoteProtocolError` when a signature or the chain does not hold.
        """
        while not self.behind():
            self._arrived.clear()
            await self._arrived.wait()
        decision = self._waiting.pop(self.next_round, None) or await self._next_fetched()
        if decision.commit is not None:
            check_link(decision.commit, self._run_id, self.head, self.head_round)
            self.head, self.head_round = commit_digest(decision.commit), decision.round
        self.next_round = decision.round + 1
        for stale in [round for round in self._waiting if round < self.next_round]:
            del self._waiting[stale]
        return decision

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
            commit = self._opened(message)
            commits[commit.round] = Decision(
                commit.round,
                commit,
                holders=tuple(() for _ in commit.entries),
                recorded_digest=message.state_digest if message.digest_reports else None,
                snapshot_sha256=message.snapshot_sha256,
            )
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

    def _opened(self, message: wire.Committed) -> Commit:
        return open_commit(SignedCommit(message.body, message.signature), self._key)
