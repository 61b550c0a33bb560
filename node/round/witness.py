"""Receipts to the coordinator: the payloads of others that this node holds.

A payload may be committed when `copies_min` members besides its author hold it, so the coordinator
needs a few receipts of each payload and not one from every member: N members that each reported N
payloads would send it N squared digests a round. In a large run a node therefore reports only the
payloads of which it is a witness,

    SHA-256(round, payload, node) mod assigned < WITNESSES + 4 * copies_min

a different part of the members for each payload, drawn by its hash. `assigned` is the number of
members that were asked to work in the round, as its opening says: members that only fill the list
thin nothing out. The chance that a payload has none of its twenty witnesses is 1 in 500 million. In
a small run every member reports everything at once, and a commit knows all holders. In a run that
is open to the public the coordinator draws the witnesses in secret, and every member reports
everything.

The author that stands in the payload's header goes with each receipt.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence

from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId

WITNESSES = 16
"""Members that report a payload, on average, besides four for each copy that a commit asks for."""

SMALL_RUN_FACTOR = 2
"""Members for each witness up to which a run is small."""

ROUNDS_KEPT = 16
"""Openings that are remembered: as many as the exchange follows undecided rounds."""

TOGETHER_S = 0.1
"""Receipts of this time after a message go into the next one: short beside any round."""


def is_small(members: int, copies_min: int) -> bool:
    """Whether every member reports everything."""
    return members <= SMALL_RUN_FACTOR * (WITNESSES + 4 * copies_min)


def is_witness(round: int, digest: Digest, own: PeerId, members: int, copies_min: int) -> bool:
    """Whether this node reports the payload."""
    drawn = hashlib.sha256(b"%d:%b:%b" % (round, digest, own.encode())).digest()
    part = int.from_bytes(drawn[:8], "big") % max(1, members)
    return is_small(members, copies_min) or part < WITNESSES + 4 * copies_min


class WitnessReports:
    """Sends this node's receipts: each at once in a small run; else the first at once, and then all
    of `TOGETHER_S` in one message.
    """

    def __init__(
        self,
        own: PeerId,
        copies_min: int,
        member_count: Callable[[], int],
        send: Callable[[wire.NodeMessage], None],
        author_of: Callable[[Digest], PeerId | None] = lambda digest: None,
    ) -> None:
        """`send` drops its messages while there is no session. `author_of` is the author in the
        header of a payload, if it is known.
        """
        self._own, self._copies_min = own, copies_min
        self._member_count, self._send, self._author_of = member_count, send, author_of
        self._assigned: dict[int, int] = {}
        self._waiting: dict[int, list[Digest]] = {}
        self._timer: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Whether the next receipt goes at once."""
        return self._timer is None

    def opened(self, round: int, assigned: int) -> None:
        """`assigned` members were asked to work in the round; 0: report every payload."""
        self._assigned[round] = assigned
        for old in sorted(self._assigned)[:-ROUNDS_KEPT]:
            del self._assigned[old]

    def add(self, round: int, digests: Sequence[Digest]) -> None:
        """These payloads of a round are held, verified."""
        members = self._member_count()
        assigned = self._assigned.get(round, members)
        mine = [
            digest
            for digest in digests
            if is_witness(round, digest, self._own, assigned, self._copies_min)
        ]
        if mine and is_small(assigned or members, self._copies_min):
            self._report(round, mine)
        elif mine:
            self._waiting.setdefault(round, []).extend(mine)
            if self._timer is None:
                self._flush()

    def _flush(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for round in sorted(waiting):
            self._report(round, waiting[round])
        self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._flush)

    def _report(self, round: int, digests: list[Digest]) -> None:
        authors = [self._author_of(digest) or "" for digest in digests]
        holding = wire.Holding(round=round, digests=digests, authors=authors)
        self._send(wire.NodeMessage(holding=holding))
