"""The run's final words in order, whether they come over the session or are fetched afterwards.

Every round number ends in exactly one word: a commit or a skip. The node takes them one by one;
what a session did not deliver (it was lost, or the node joined later) is fetched from the
coordinator, checked against its signature and the hash chain. A word is checked once, here; whoever
gets one may rely on it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from protocol import wire_pb2 as wire
from protocol.commits import (
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

LIVE_WORDS_MAX = 256
"""Words from the session that may wait; beyond it they are fetched again when their turn comes."""

FETCHED_WORDS_MAX = 4096
"""Words taken from one reply: bounds what a coordinator that claims many skipped rounds can make a
node hold."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What became of a round. `commit` is None for a skipped one, `holders[i]` are known to hold
    entry i's payload, the recorded digest is None when unknown, the SHA-256 of the snapshot
    empty.
    """

    round: int
    commit: Commit | None
    holders: tuple[tuple[PeerId, ...], ...] = ()
    recorded_digest: int | None = None
    reason: str = ""
    snapshot_sha256: bytes = b""


class DecisionLog:
    """Hands out the words of rounds `next_round`, `next_round + 1`, ...; starts after
    `settled_round`.
    """

    def __init__(
        self, run_id: RunId, coordinator_key: bytes, fetch: Callable[[int], Awaitable[wire.Commits]]
    ) -> None:
        self._run_id, self._key, self._fetch = run_id, coordinator_key, fetch
        self._live: dict[int, Decision] = {}
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

    # ---- what the session brings

    def saw_decided(self, round: int) -> None:
        """The coordinator says that every round up to here has its final word."""
        self.decided_round = max(self.decided_round, round)
        self._arrived.set()

    def committed(self, message: wire.RoundCommitted) -> None:
        """Take a commit from the session."""
        commit = self._opened(message.commit)
        if len(message.holders) != len(commit.entries):
            raise RemoteProtocolError(
                f"round {commit.round}: expected holders of {len(commit.entries)} payloads"
            )
        holders = tuple(
            tuple(map(parse_peer_id, row.peer_ids[:MEMBERS_MAX])) for row in message.holders
        )
        self._take(Decision(commit.round, commit, holders))

    def skipped(self, message: wire.RoundSkipped) -> None:
        """Take a skip from the session."""
        self._take(Decision(message.round, None, reason=message.reason))

    def _take(self, word: Decision) -> None:
        if len(self._live) < LIVE_WORDS_MAX:
            self._live[word.round] = word
        self.saw_decided(word.round)

    # ---- what the trainer takes

    def behind(self) -> bool:
        """Is there a final word that has not been taken?"""
        return self.next_round <= self.decided_round

    def at_hand(self) -> Decision | None:
        """The word that `next` would take, if the session has brought it."""
        return self._live.get(self.next_round)

    def in_step(self, round: int, overlap: int) -> bool:
        """Is `round` undecided, and `next_round` no further back than the overlap allows? Then it
        may be trained before the word that is there is taken, as it would be had the word come a
        moment later; whoever applies first is late, and the others wait.
        """
        return self.decided_round < round <= self.next_round + overlap

    async def next(self) -> Decision:
        """The word of `next_round`, waiting for it if need be.

        Raises `RemoteProtocolError` when a signature or the chain does not hold.
        """
        while not self.behind():
            self._arrived.clear()
            await self._arrived.wait()
        word = self._live.pop(self.next_round, None) or await self._fetched_word()
        if word.commit is not None:
            check_link(word.commit, self._run_id, self.head, self.head_round)
            self.head, self.head_round = commit_digest(word.commit), word.round
        self.next_round = word.round + 1
        for stale in [round for round in self._live if round < self.next_round]:
            del self._live[stale]
        return word

    async def _fetched_word(self) -> Decision:
        while self._fetched and self._fetched[0].round < self.next_round:
            self._fetched.popleft()  # the session told this one too
        if not self._fetched:
            await self._fetch_more()
        return self._fetched.popleft()

    async def _fetch_more(self) -> None:
        """Words of rounds from `next_round` on, as many as one reply tells."""
        reply = await self._fetch(self.next_round - 1)
        commits = {}
        for message in reply.commits[:COMMITS_PER_REPLY]:
            commit = self._opened(message)
            digest = message.state_digest if message.digest_reports else None
            unknown = tuple(() for _ in commit.entries)
            word = Decision(
                commit.round, commit, unknown, digest, snapshot_sha256=message.snapshot_sha256
            )
            commits[commit.round] = word
        full = len(commits) == COMMITS_PER_REPLY
        last = max(commits) if full else reply.decided_round
        last = min(last, self.next_round + FETCHED_WORDS_MAX - 1)
        if last < self.next_round:
            raise RemoteProtocolError(
                f"expected the final word of round {self.next_round}, it is not told"
            )
        for round in range(self.next_round, last + 1):
            self._fetched.append(commits.get(round) or Decision(round, None))

    def _opened(self, message: wire.Committed) -> Commit:
        return open_commit(SignedCommit(message.body, message.signature), self._key)
