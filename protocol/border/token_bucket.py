"""Token bucket: bounds a rate and lets short bursts pass. Pure: time comes in as an argument.

Tokens are anything that is counted: bytes of an upload, messages of a session, lines of a log.
"""

from collections.abc import Hashable
from typing import Generic, TypeVar

from cachetools import LRUCache

_Key = TypeVar("_Key", bound=Hashable)


class TokenBucket:
    """The bucket of one limit: it fills at `per_second` up to `burst`, is full at first, and may
    owe tokens.
    """

    def __init__(self, per_second: float, burst: float, now_ms: int) -> None:
        self._per_ms = per_second / 1000
        self._tokens_max = self._tokens = float(burst)
        self._at_ms = now_ms

    @property
    def burst(self) -> int:
        """Most tokens that can be taken at once."""
        return int(self._tokens_max)

    def take(self, count: float, now_ms: int) -> bool:
        """Take `count` tokens if the bucket holds them; returns whether it did."""
        self._fill(now_ms)
        if count > self._tokens:
            return False
        self._tokens -= count
        return True

    def charge(self, count: float, now_ms: int) -> None:
        """Take `count` tokens; the balance may become negative."""
        self._fill(now_ms)
        self._tokens -= count

    def wait_ms(self, count: float, now_ms: int) -> float:
        """Time until the bucket holds `count` tokens, or is full if they are more."""
        self._fill(now_ms)
        return max(0.0, min(count, self._tokens_max) - self._tokens) / self._per_ms

    def _fill(self, now_ms: int) -> None:
        gained = self._per_ms * max(0, now_ms - self._at_ms)
        self._tokens = min(self._tokens_max, self._tokens + gained)
        self._at_ms = now_ms


class TokenBuckets(Generic[_Key]):
    """One bucket for each key, such as a peer or an address, all of one rate. The keys that were
    used least recently are forgotten beyond `keys_max`: a forgotten bucket was mostly full again.
    """

    def __init__(self, per_second: float, burst: float, keys_max: int = 4096) -> None:
        self._rate = per_second, burst
        self._buckets: LRUCache[_Key, TokenBucket] = LRUCache(keys_max)

    def take(self, key: _Key, count: float, now_ms: int) -> bool:
        """As `TokenBucket.take`, of the key's bucket."""
        return self.of(key, now_ms).take(count, now_ms)

    def of(self, key: _Key, now_ms: int) -> TokenBucket:
        """The bucket of a key, made if there is none."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = TokenBucket(*self._rate, now_ms)
        return bucket
