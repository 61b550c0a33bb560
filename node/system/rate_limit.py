"""The bounds of a limit in bytes per second, and its bucket: bytes, filled a little slower than the
limit, with a quarter of a second in it, so that no five seconds carry more than the limit.
"""

from protocol.border.token_bucket import TokenBucket
from protocol.errors import SettingsError

FILL_SHARE = 0.93
"""Share of the limit at which the bucket fills."""

BURST_S = 0.25
"""Time of the limit that the bucket holds. 5 s * 0.93 + 0.25 s = 4.9 s: a bit less than the limit
in any five seconds, because charged bytes leave with a delay that varies by some hundredths of a
second."""

LIMIT_BYTES_PER_SECOND_MIN = 20_000
"""Least limit: below it the smallest part is more than the bucket holds, and the bytes that leave
at once more than the limit. On the way down a part would take longer than its sender waits for an
acknowledgement."""


def check_rates(**limits: int) -> None:
    """`SettingsError` for a limit of the upload or the download, 0 for none, that is too low; it is
    named by its argument.
    """
    for name, limit in limits.items():
        if limit and limit < LIMIT_BYTES_PER_SECOND_MIN:
            raise SettingsError(
                f"{name}: expected 0 or at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per second, "
                f"found {limit}"
            )


def rate_bucket(bytes_per_second: int, now_ms: int) -> TokenBucket:
    """The bucket of a limit; `SettingsError` for one that is too low."""
    if bytes_per_second < LIMIT_BYTES_PER_SECOND_MIN:
        raise SettingsError(
            f"expected a limit of at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per "
            f"second, got {bytes_per_second}"
        )
    return TokenBucket(FILL_SHARE * bytes_per_second, BURST_S * bytes_per_second, now_ms)
