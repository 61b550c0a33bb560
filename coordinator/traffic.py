"""What the coordinator's line carried, each byte with its owner, and where it is counted: as
messages become bytes.

catch-up    the run file and old commits, for who joins or comes back; up only
control     all other messages
overhead    what transports and the operating system add, where the kernel tells of it
"""

from collections.abc import Callable
from typing import Literal, TypeVar

from protocol.traffic import Overhead, unknown_overhead

_Message = TypeVar("_Message")

Owner = Literal["control", "catch_up"]


class Traffic:
    """Bytes since the start. `overhead` tells what nobody owns."""

    def __init__(self, overhead: Overhead = unknown_overhead) -> None:
        self._overhead = overhead
        self._up: dict[Owner, int] = {"control": 0, "catch_up": 0}
        self._down = 0

    def came(self, decode: Callable[[bytes], _Message]) -> Callable[[bytes], _Message]:
        """A decoder of requests that counts their bytes."""

        def decoded(data: bytes) -> _Message:
            self._down += len(data)
            return decode(data)

        return decoded

    def left(
        self, encode: Callable[[_Message], bytes], owner: Owner = "control"
    ) -> Callable[[_Message], bytes]:
        """An encoder of replies that counts their bytes."""

        def encoded(message: _Message) -> bytes:
            data = encode(message)
            self._up[owner] += len(data)
            return data

        return encoded

    def document(self) -> dict[str, int | None]:
        """For a status page."""
        overhead_up, overhead_down = self._overhead(sum(self._up.values()), self._down) or (
            None,
            None,
        )
        return {
            "control_up_bytes": self._up["control"],
            "control_down_bytes": self._down,
            "catch_up_up_bytes": self._up["catch_up"],
            "catch_up_down_bytes": 0,
            "overhead_up_bytes": overhead_up,
            "overhead_down_bytes": overhead_down,
        }
