"""Receipts to the coordinator: which payloads of others this node holds.

A payload may be committed when `copies_min` members besides its author hold it, so of each payload
the coordinator needs a few receipts and not one from everybody: N members that each reported N
payloads would send it N squared digests a round. In a large run a node therefore reports what it is
a witness of,

    SHA-256(round, payload, node) mod members < WITNESSES + 4 * copies_min

a different part of the members for each payload, drawn by nobody. That a payload has none of its
twenty witnesses has a chance of 1 to 500 million. What becomes held within a moment goes in one
message. In a small run everybody reports everything at once, and a commit knows all holders.
"""

import asyncio
import hashlib
from collections.abc import Callable, Sequence

from protocol.ids import Digest, PeerId

WITNESSES = 16
"""Members that report a payload, on average, besides four for each copy that a commit asks for."""

EVERYBODY = 2
"""A run is small with up to so many members for each witness."""

TOGETHER_SECONDS = 0.1
"""Receipts of this time after a message go into the next one: short beside any round."""


def is_small(members: int, copies_min: int) -> bool:
    """Does everybody report everything?"""
    return members <= EVERYBODY * (WITNESSES + 4 * copies_min)


def is_witness(round: int, digest: Digest, own: PeerId, members: int, copies_min: int) -> bool:
    """Is it this node's part to report the payload?"""
    drawn = hashlib.sha256(b"%d:%b:%b" % (round, digest, own.encode())).digest()
    part = int.from_bytes(drawn[:8], "big") % max(1, members)
    return is_small(members, copies_min) or part < WITNESSES + 4 * copies_min


class WitnessReports:
    """Hands on what this node is to report: at once in a small run, else the first at once and then
    at most every `TOGETHER_SECONDS`.
    """

    def __init__(
        self, own: PeerId, copies_min: int, send: Callable[[int, list[Digest]], None]
    ) -> None:
        self._own, self._copies_min, self._send = own, copies_min, send
        self._waiting: dict[int, list[Digest]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, round: int, digests: Sequence[Digest], members: int) -> None:
        """These payloads of a round are held, verified, in a run of so many members."""
        mine = [
            digest
            for digest in digests
            if is_witness(round, digest, self._own, members, self._copies_min)
        ]
        if mine and is_small(members, self._copies_min):
            self._send(round, mine)
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
            self._send(round, waiting[round])
        self._timer = asyncio.get_running_loop().call_later(TOGETHER_SECONDS, self._flush)
