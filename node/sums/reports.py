"""Tells the coordinator the parts that this node holds as a summer.

Every summer reports every part: a range has two of them, so there is nothing to thin out. The first
report goes at once, and those of `TOGETHER_S` after it in one message: a large crowd's parts arrive
within seconds.
"""

import asyncio
from collections.abc import Callable, Mapping

from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId
from protocol.sums.receipts import receipt_name

TOGETHER_S = 0.1
"""Reports of this time after a message go into the next one: short beside any round."""


class PartReports:
    """The reports of one node. `send` drops its messages while there is no session."""

    def __init__(self, send: Callable[[wire.NodeMessage], None]) -> None:
        self._send = send
        self._waiting: dict[int, dict[Digest, tuple[PeerId, int]]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, round: int, held: Mapping[Digest, tuple[PeerId, int]]) -> None:
        """Parts of each of these roots are held, verified: of this author, and in these ranges, as
        bits, which are all that this node adds and holds.
        """
        self._waiting.setdefault(round, {}).update(held)
        if self._timer is None:
            self._flush()

    def _flush(self) -> None:
        self._timer = None
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for round, held in sorted(waiting.items()):
            payloads = dict[int, list[int]]()
            for root, (author, ranges) in held.items():
                payloads.setdefault(ranges, []).append(receipt_name(author, root))
            told = [
                wire.HeldParts(ranges=ranges, payloads=sorted(payloads[ranges]))
                for ranges in sorted(payloads)
            ]
            self._send(wire.NodeMessage(parts=wire.PartsHeld(round=round, held=told)))
        self._timer = asyncio.get_running_loop().call_later(TOGETHER_S, self._flush)
