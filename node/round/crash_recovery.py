"""What an earlier life of this node has sent of the momentum that it left behind.

A state that is not saved every round is older than the process that died with it:

    saved          r+1, r+2: trained, sent, committed          killed
      |---------------------------------------------------------|
      '--> restored: momentum of r, which holds what r+1 and r+2 have sent meanwhile

The log tells what was sent: each commit names its payloads and their authors. So what this node is
named for, in rounds of which its state does not know, is withdrawn from the momentum before that is
trained on, and nothing counts twice. Until then the node takes up no round while a word from before
it is out: that one too may name a payload of its own. What was trained after the save and not sent
is lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from node.replica.position import Position
from node.replica.replica import Replica
from protocol.commits import Commit
from protocol.ids import Digest, PeerId

log = logging.getLogger("lockstep.node")


class CrashRecovery:
    """Holds what is known of it until `end`, when this life begins to train."""

    def __init__(self, own: PeerId, replica: Replica, restored: Position | None) -> None:
        self._own, self._replica = own, replica
        self._known = (
            frozenset(pending.round for pending in restored.pending) if restored else frozenset()
        )
        self.unsaved_rounds = restored.unsaved_rounds if restored else 0
        """So many rounds beyond the loaded state may have been trained; 0 once what they sent has
        left the momentum. A state that is saved before that is as doubtful."""
        if restored and self.unsaved_rounds:
            log.warning(
                "lost what was trained after the last save and not sent next_round=%s rounds_max=%s",
                restored.next_round,
                restored.unsaved_rounds,
            )

    def end(self) -> None:
        """The momentum is that of this life from now on."""
        self.unsaved_rounds = 0

    def may_be_named(self, next_round: int, opened_round: int) -> bool:
        """May a word that is still out, from `next_round` on, name what was sent before
        `opened_round`?
        """
        return self.unsaved_rounds > 0 and next_round < opened_round

    async def counted(self, commit: Commit, payloads: Sequence[bytes]) -> None:
        """A commit was applied: `payloads` in the order of its entries."""
        if self.unsaved_rounds and commit.round not in self._known:
            for entry, payload in zip(commit.entries, payloads, strict=True):
                if entry.author == self._own:
                    await asyncio.to_thread(self._replica.withdraw, commit.round, payload)

    async def passed(
        self, own: Mapping[int, Digest], kept: Callable[[Digest], Awaitable[bytes | None]]
    ) -> None:
        """A snapshot was adopted in place of rounds in which payloads of this node, `own`, were
        committed. Its own log has them; if not, what is left of the momentum cannot be known, and
        it begins again without.
        """
        for round, digest in own.items():
            if not self.unsaved_rounds or round in self._known:
                continue
            payload = await kept(digest)
            if payload is None:
                log.warning(
                    "begins again without momentum reason=a payload that was counted is not in its own log"
                )
                await asyncio.to_thread(self._replica.forget_momentum)
                return
            await asyncio.to_thread(self._replica.withdraw, round, payload)
