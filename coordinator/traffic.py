"""Bytes that the coordinator sends and receives, by owner. They are counted where messages become
bytes.

catch-up    the run file and old commits, for a node that joins or comes back; up only
control     all other messages
overhead    bytes that transports and the operating system add, if the kernel tells them
"""

from collections.abc import Callable
from typing import Literal, TypeVar

from protocol.traffic import Overhead, unknown_overhead

_Message = TypeVar("_Message")

Owner = Literal["control", "catch_up"]


class CoordinatorTraffic:
    """Bytes since the start. `overhead` tells the bytes that no message accounts for."""

    def __init__(self, overhead: Overhead = unknown_overhead) -> None:
        self._overhead = overhead
        self._up: dict[Owner, int] = {"control": 0, "catch_up": 0}
        self._down = 0

    def counted_decoder(self, decode: Callable[[bytes], _Message]) -> Callable[[bytes], _Message]:
        """A decoder of requests that counts their bytes."""

        def decoded(data: bytes) -> _Message:
            self._down += len(data)
            return decode(data)

        return decoded

    def counted_encoder(
        self, encode: Callable[[_Message], bytes], owner: Owner = "control"
    ) -> Callable[[_Message], bytes]:
        """An encoder of replies that counts their bytes."""

        def encoded(message: _Message) -> bytes:
            data = encode(message)
            self._up[owner] += len(data)
            return data

        return encoded

    def document(self) -> dict[str, int | None]:
        """The counters for a status page; None for an overhead that is not known."""
        overhead = self._overhead(sum(self._up.values()), self._down)
        overhead_up, overhead_down = overhead or (None, None)
        return {
            "control_up_bytes": self._up["control"],
            "control_down_bytes": self._down,
            "catch_up_up_bytes": self._up["catch_up"],
            "catch_up_down_bytes": 0,
            "overhead_up_bytes": overhead_up,
            "overhead_down_bytes": overhead_down,
        }
