"""Memory that was freed, given back to the system: glibc keeps it, in pieces, for ever."""

import ctypes

CROWDED = 128
"""Connections without a key that leave something worth giving back."""

LOOKS = 5
"""Looks after a crowd at which memory is given back: gRPC frees what it held bit by bit."""


def give_back_freed_memory() -> bool:
    """Return what this process has freed to the system, in some milliseconds; False, and nothing
    changes, where the C library is not glibc.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    trim(0)
    return True


class Memory:
    """Gives memory back when a crowd has gone."""

    def __init__(self) -> None:
        self._looks = 0

    def look(self, unproven: int) -> None:
        """`unproven`: the connections without a key that there are now."""
        if unproven >= CROWDED:
            self._looks = LOOKS
        elif self._looks:
            self._looks -= 1
            give_back_freed_memory()
