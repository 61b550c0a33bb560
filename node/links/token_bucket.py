"""Token bucket of an upload limit. Pure: time comes in as an argument.

Tokens are bytes. The bucket fills a little slower than the limit and holds a quarter of a second,
so that no five seconds carry more than the limit.
"""

from protocol.errors import SettingsError

FILL_SHARE = 0.93
"""Share of the limit at which the bucket fills."""

BURST_S = 0.25
"""Time of the limit that the bucket holds. 5 s * 0.93 + 0.25 s = 4.9 s: a bit less than the limit
in any five seconds, because charged bytes leave with a delay that varies by some hundredths of a
second."""

LIMIT_BYTES_PER_SECOND_MIN = 20_000
"""Least limit: below it the smallest part is more than the bucket holds, and the bytes that leave
at once more than the limit."""


class TokenBucket:
    """The bucket of one limit; it may owe bytes."""

    def __init__(self, bytes_per_second: int, now_ms: int) -> None:
        if bytes_per_second < LIMIT_BYTES_PER_SECOND_MIN:
            raise SettingsError(
                f"expected an upload limit of at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per "
                f"second, got {bytes_per_second}"
            )
        self._per_ms = FILL_SHARE * bytes_per_second / 1000
        self._tokens_max = BURST_S * bytes_per_second
        self._tokens = self._tokens_max
        self._at_ms = now_ms

    @property
    def burst_bytes(self) -> int:
        """Most bytes that can leave at once."""
        return int(self._tokens_max)

    def charge(self, count: float, now_ms: int) -> None:
        """Charge `count` bytes; the balance may become negative."""
        self._fill(now_ms)
        self._tokens -= count

    def wait_ms(self, count: float, now_ms: int) -> float:
        """Time until `count` bytes may leave, or a full bucket of them if they are more."""
        self._fill(now_ms)
        return max(0.0, min(count, self._tokens_max) - self._tokens) / self._per_ms

    def _fill(self, now_ms: int) -> None:
        gained = self._per_ms * max(0, now_ms - self._at_ms)
        self._tokens = min(self._tokens_max, self._tokens + gained)
        self._at_ms = now_ms
