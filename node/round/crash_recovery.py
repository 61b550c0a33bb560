"""Corrects the momentum of a node that was killed: payloads that it had sent leave it.

A state that is not saved every round is older than the process that died with it:

    saved          r+1, r+2: trained, sent, committed          killed
      |---------------------------------------------------------|
      '--> restored: momentum of r, which holds what r+1 and r+2 have sent meanwhile

The log has them: each commit names its payloads and their authors. A payload of this node in a
round that the restored state does not know is withdrawn from the momentum before the node trains,
so that nothing counts twice. The node trains no round while the decision of an earlier one is out,
because that too may name a payload of its own. Work after the save that was not sent is lost.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from node.replica.position import Position
from node.round.context import TrainableReplica
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId

log = logging.getLogger("lockstep.node")


class CrashRecovery:
    """Corrects the momentum of a restored state until `end`, when this process begins to train."""

    def __init__(self, own: PeerId, replica: TrainableReplica, restored: Position | None) -> None:
        self._own, self._replica = own, replica
        self._known = (
            frozenset(pending.round for pending in restored.pending) if restored else frozenset()
        )
        self._unsaved_rounds = restored.unsaved_rounds if restored else 0
        if restored and self._unsaved_rounds:
            log.warning(
                "training after the last save is lost unless it was sent",
                extra={"round": restored.next_round, "rounds_max": self._unsaved_rounds},
            )

    @property
    def unsaved_rounds(self) -> int:
        """Rounds beyond the loaded state that may have been trained; 0 once their payloads have
        left the momentum. A state that is saved before that is as doubtful.
        """
        return self._unsaved_rounds

    @property
    def doubtful(self) -> bool:
        """Whether a decision that is out may name a payload that the momentum still holds."""
        return self._unsaved_rounds > 0

    def end(self) -> None:
        """The momentum is that of this process from now on."""
        self._unsaved_rounds = 0

    async def applied(self, commit: Commit, payloads: Sequence[bytes]) -> None:
        """Withdraw this node's payload of a commit; `payloads` in the order of its entries, empty
        for those that are void.
        """
        if self.doubtful and commit.round not in self._known:
            for entry, payload in zip(commit.entries, payloads, strict=True):
                if entry.author == self._own and payload:
                    await asyncio.to_thread(self._replica.withdraw, commit.round, payload)

    async def jumped(
        self, own: Mapping[int, Digest], kept: Callable[[Digest], Awaitable[bytes | None]]
    ) -> None:
        """Withdraw this node's payloads `own` of rounds that a snapshot has replaced.

        They are read from its own payload log. When one is missing there, what is left of the
        momentum cannot be known, and the node begins again without momentum.
        """
        for round, digest in own.items():
            if not self.doubtful or round in self._known:
                continue
            payload = await kept(digest)
            if payload is None:
                log.warning(
                    "momentum discarded",
                    extra={"round": round, "reason": "a payload that counted is not in the log"},
                )
                await asyncio.to_thread(self._replica.forget_momentum)
                return
            await asyncio.to_thread(self._replica.withdraw, round, payload)
