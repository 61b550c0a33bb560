"""Memory that a crowd leaves behind: glibc keeps what was freed, in pieces, for ever."""

import contextlib
import ctypes

CROWDED = 128
"""Connections without a key that leave something worth giving back."""

LOOKS = 5
"""Looks after a crowd at which memory is given back: gRPC frees what it held bit by bit."""


class Memory:
    """Gives memory back to the system when a crowd has gone. It takes some milliseconds."""

    def __init__(self) -> None:
        self._looks = 0
        self._trim = None
        with contextlib.suppress(OSError, AttributeError, TypeError):  # another system's
            self._trim = ctypes.CDLL(None).malloc_trim

    def look(self, unproven: int) -> None:
        """`unproven`: the connections without a key that there are now."""
        if unproven >= CROWDED:
            self._looks = LOOKS
        elif self._looks:
            self._looks -= 1
            if self._trim:
                self._trim(0)
