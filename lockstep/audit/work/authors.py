"""What an auditor finds out about the authors of a run, beside its replay: whose payloads are
copies, and whose work was not done.
"""

import logging
from typing import Any

from lockstep.audit.copies.payloads import Payload, Payloads
from lockstep.audit.copies.watching import CopyWatch
from lockstep.audit.work.auditing import WorkWatch
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.errors import UnavailableError
from protocol.ids import Digest

log = logging.getLogger("lockstep.auditor")


class AuthorAudit:
    """Both searches, as far as there are any: none for work without the one for copies."""

    def __init__(self, copies: CopyWatch | None = None, work: WorkWatch | None = None) -> None:
        self._copies, self._work = copies, work
        self._unread = 0
        """Rounds with sums of which a part was not there, since the start."""

    async def before(
        self,
        commit: Commit,
        recorded: wire.Committed,
        voids: frozenset[Digest],
        replica: Replica,
        payload: Payload,
        *,
        behind: int,
        restarts: int,
    ) -> None:
        """A commit is about to be applied. Raises `UnavailableError` when a payload of it is not
        there, which the replay needs as well. Where summers have added, the replay needs results
        alone, and an author and the summers of a range can withhold a part for ever: such a round
        is passed over.
        """
        copies = self._copies
        if copies is None:
            return
        read = Payloads(payload, replica.shape)
        try:
            named = frozenset(await copies.look(commit, voids, read, restarts=restarts))
        except UnavailableError as error:
            if commit.sums is None:
                raise
            self._unread += 1
            about = {"round": commit.round, "reason": str(error)}
            log.warning("the authors of a round are not audited", extra=about)
            if self._work:
                self._work.passed(commit)
            return
        if self._work:
            await self._work.before(
                commit,
                recorded,
                voids,
                replica,
                behind=behind,
                named=named,
                twins=copies.twins,
                movements=copies.movements,
            )

    def drop(self) -> None:
        """The replay goes back."""
        if self._copies:
            self._copies.drop()
        if self._work:
            self._work.drop()

    async def step(self, payload: Payload, seconds: float) -> bool:
        """Go on with the work in hand, no longer than this; False when there is none."""
        return self._work is not None and await self._work.step(payload, seconds)

    async def close(self) -> None:
        """Give up the work in hand, and keep what was found."""
        if self._work:
            await self._work.close()
        if self._copies:
            await self._copies.save()

    def document(self) -> dict[str, Any]:
        """Both for /status.json."""
        return {
            "work": self._work.document() if self._work else {},
            "copies": self._copies.document() if self._copies else {},
            "rounds_unread": self._unread,
        }
