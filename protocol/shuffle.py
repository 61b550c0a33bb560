"""The data order: the sample at each position, and the leases of positions to members.

Positions 0, 1, 2, ... never end. Position p belongs to epoch p // samples and is, within it, the
sample that a permutation of all samples, fixed by (seed, epoch), puts at p % samples. So each epoch
visits every sample once, and any party finds any sample by arithmetic, without a list in memory.

The permutation is a balanced Feistel network (Luby and Rackoff, 1988): a bijection of all pairs of
h-bit halves, whatever its round function is. Values that fall outside range(size) are sent through
it again until they fall inside (cycle walking, Black and Rogaway, 2002), which restricts the
bijection to range(size) and takes fewer than four passes on average, because 4**h < 4 * size. All
arithmetic is on unsigned 64-bit integers and wraps, so the bits are the same on every platform.

Positions are leased in shares. `DataOrder` is the ledger: positions below `next_position` are out
with somebody or stand in `returned`; those from there on have never been leased. Each position is
out at most once at a time.
"""

import hashlib
import struct
from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from protocol.errors import LocalProtocolError

SAMPLES_MAX: Final = 2**62
"""Samples of a data set at most: its Feistel domain and every index then fit 63 bits."""

POSITIONS_MAX: Final = 2**63 - 1
"""Positions of the data order: the end of a share, too, fits a signed 64-bit integer."""

FEISTEL_ROUNDS: Final = 6
"""Four rounds of a strong round function cannot be told from a random permutation; two more are
spare."""

Int64s = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Permutation:
    """A bijection of range(size), fixed by (size, seed, epoch)."""

    size: int
    """Number of elements, 1 to SAMPLES_MAX."""

    seed: int
    """Seed of the run's data order, 0 to 2**64 - 1."""

    epoch: int
    """Number of the pass over the data, 0 to 2**63 - 1."""

    def __post_init__(self) -> None:
        _require("a size", self.size, 1, SAMPLES_MAX)
        _require("a seed", self.seed, 0, 2**64 - 1)
        _require("an epoch", self.epoch, 0, POSITIONS_MAX)

    def at(self, index: int) -> int:
        """Image of one index; `LocalProtocolError` outside range(size)."""
        _require("an index", index, 0, self.size - 1)
        return int(self.take(np.array([index], np.int64))[0])

    def take(self, indices: Int64s) -> Int64s:
        """Images of indices, int64[n]; `LocalProtocolError` outside range(size)."""
        if not indices.size:
            return np.empty(0, np.int64)
        _require("indices", int(indices.min()), 0, self.size - 1)
        _require("indices", int(indices.max()), 0, self.size - 1)
        images = self._feistel(indices.astype(np.uint64))
        outside = np.flatnonzero(images >= self.size)
        while outside.size:
            walked = self._feistel(images[outside])
            images[outside] = walked
            outside = outside[walked >= self.size]
        return images.astype(np.int64)

    def _feistel(self, values: _Words) -> _Words:
        """One pass over the domain: two halves, together the least even number of bits that holds
        `size`.
        """
        half_bits = max(1, -(-(self.size - 1).bit_length() // 2))
        half, mask = np.uint64(half_bits), np.uint64(2**half_bits - 1)
        left, right = values >> half, values & mask
        for key in self._keys():
            left, right = right, left ^ (_mix(right + key) & mask)
        return left << half | right

    def _keys(self) -> tuple[np.uint64, ...]:
        """One 64-bit key for each Feistel round."""
        name = struct.pack("<QQ", self.seed, self.epoch)
        digest = hashlib.blake2b(
            name, digest_size=8 * FEISTEL_ROUNDS, person=b"lockstep-shuffle"
        ).digest()
        return tuple(np.uint64(key) for key in struct.unpack(f"<{FEISTEL_ROUNDS}Q", digest))


def _mix(words: _Words) -> _Words:
    """Finaliser of SplitMix64 (Steele, Lea and Flood, 2014): every input bit moves every output
    bit.
    """
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def samples_of(first: int, count: int, samples: int, seed: int) -> Int64s:
    """Samples at positions first .. first + count - 1, as int64[count]; they may span epochs."""
    _require("a first position", first, 0, POSITIONS_MAX)
    _require("a count", count, 0, POSITIONS_MAX - first)
    _require("a number of samples", samples, 1, SAMPLES_MAX)
    taken = np.empty(count, np.int64)
    done = 0
    while done < count:
        epoch, start = divmod(first + done, samples)
        stop = min(samples, start + count - done)
        part = Permutation(samples, seed, epoch).take(np.arange(start, stop, dtype=np.int64))
        taken[done : done + part.size] = part
        done += part.size
    return taken


@dataclass(frozen=True, slots=True)
class Share:
    """Consecutive positions of the data order, leased to one node."""

    first: int
    """First position."""

    count: int
    """Number of positions; 0 is an empty share."""

    def __post_init__(self) -> None:
        _require("a first position", self.first, 0, POSITIONS_MAX)
        _require("a count of positions", self.count, 0, POSITIONS_MAX - self.first)

    @property
    def end(self) -> int:
        """The position after the last."""
        return self.first + self.count

    def split(self, used: int) -> tuple["Share", "Share"]:
        """The first `used` positions, and the others to be returned; either may be empty."""
        _require("a number of used positions", used, 0, self.count)
        return Share(self.first, used), Share(self.first + used, self.count - used)


@dataclass(slots=True)
class DataOrder:
    """The ledger of leased positions. Its caller keeps the list of holders."""

    next_position: int = 0
    """First position that was never leased."""

    returned: list[Share] = field(default_factory=list)
    """Positions that came back, not used or left out: sorted, not empty, not touching each other.
    They are leased again before new ones, which keeps the list short."""

    def lease(self, count: int) -> tuple[Share, ...]:
        """Take the `count` lowest positions that are not out: several shares if some were
        returned.
        """
        _require("a count of positions", count, 0, POSITIONS_MAX - self.next_position)
        shares = []
        while count and self.returned:
            share, rest = self.returned[0].split(min(count, self.returned[0].count))
            self.returned[:1] = [rest] if rest.count else []
            shares.append(share)
            count -= share.count
        if count:
            shares.append(Share(self.next_position, count))
            self.next_position += count
        return tuple(shares)

    def give_back(self, share: Share) -> None:
        """Make leased positions available again.

        `LocalProtocolError`, and nothing changes, where one of them was never leased or is
        available already. An empty share, from a node that used everything, gives nothing back.
        """
        if not share.count:
            return
        if share.end > self.next_position:
            raise LocalProtocolError(
                f"expected positions leased below {self.next_position}, got {share} back"
            )
        place = bisect_left(self.returned, share.first, key=lambda other: other.first)
        low = high = place
        first, end = share.first, share.end
        if place and (before := self.returned[place - 1]).end >= first:
            _require_apart(before, share)
            low, first = place - 1, before.first
        if place < len(self.returned) and (after := self.returned[place]).first <= end:
            _require_apart(share, after)
            high, end = place + 1, after.end
        self.returned[low:high] = [Share(first, end - first)]


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise LocalProtocolError(f"expected {name} from {least} to {most}, got {value}")


def _require_apart(lower: Share, higher: Share) -> None:
    if lower.end > higher.first:
        raise LocalProtocolError(
            f"expected positions that are out, got {lower} and {higher} back, which overlap"
        )
