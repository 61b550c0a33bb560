"""The monotonic clock of this machine."""

import time


def own_clock_ms() -> int:
    """Milliseconds of the monotonic clock: never set back, meaningless on other machines."""
    return time.monotonic_ns() // 1_000_000
