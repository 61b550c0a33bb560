"""Pauses between attempts that fail one after the other. Pure: the caller waits."""


class Backoff:
    """Pauses in milliseconds: `first_ms`, then each twice the one before, up to `longest_ms`."""

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._pause_ms = first_ms

    def advance(self) -> int:
        """Return the pause before the next attempt, and double the one after it."""
        pause_ms = self._pause_ms
        self._pause_ms = min(2 * pause_ms, self._longest_ms)
        return pause_ms

    def reset(self) -> None:
        """Begin again with the first pause: an attempt succeeded."""
        self._pause_ms = self._first_ms
