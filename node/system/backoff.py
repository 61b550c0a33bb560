"""A pause that doubles. Pure: whoever waits brings the clock."""


class Backoff:
    """Pauses of `first_ms`, twice that, four times that, up to `longest_ms`."""

    def __init__(self, first_ms: int, longest_ms: int) -> None:
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._pause_ms = first_ms

    def next(self) -> int:
        """Return the pause after one more failure, in milliseconds, and double it."""
        pause_ms = min(self._pause_ms, self._longest_ms)
        self._pause_ms = 2 * pause_ms
        return pause_ms

    def reset(self) -> None:
        """Begin again with the first pause, after a success."""
        self._pause_ms = self._first_ms
