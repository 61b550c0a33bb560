"""The crowd at a public port: connections that have proven nothing, weighed by network. Pure:
time is an argument.

          came             a whole call, a whole hello              proven
    (none) ---> unproven ------------------------------> unproven --------> proven ---> gone
                   '--> cut: its time is up, or its place is needed

A connection is proven once a key that may come in was shown on it, and is not weighed any more.
Until then it weighs `PLACE_BYTES` and the bytes that it has sent and nobody could use yet. gRPC
turns each of them into up to 110 in memory, and keeps them for as long as it likes: so a bound on
the weight is one on places and on memory.

    everybody, 512 KiB
      |-- IPv4 /24, 256 KiB ------------------- address, 192 KiB
      '-- IPv6 /48, 256 KiB -- /56, 224 KiB -- /64, 192 KiB

Where a network or everybody together weighs too much, its most crowded part is followed down to
one network, and the oldest connection there makes room. So a network that fills its own bound
pushes out its own, and one that has few connections loses them last, whoever came first. A network
whose connections have ended without a key again and again counts as more crowded for a while: a
thousand networks that come as fast as they are cut push out each other, and not a newcomer. Who
shows a key has asked for a certificate before: one connection of late is forgiven for it.

A connection that ends unproven, with bytes that nobody could use, is wasted: gRPC may be at work on
it for seconds. A network that has wasted its bound comes in again as it is forgiven, in
`FORGIVEN_S` all of it. When everybody together has wasted theirs, only networks come in that have
wasted next to nothing.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from operator import attrgetter

from protocol.border.networks import ip_of
from protocol.border.token_bucket import TokenBucket, TokenBuckets

PLACE_BYTES = 1024
"""Weight of a connection that has sent nothing: buffers, a descriptor, a TLS handshake."""

REASONS = ("place", "time", "waste")
"""Why connections are cut."""

KIB = 1024

EVERYBODY_BYTES_MAX = 512 * KIB
"""Weight of all unproven connections: 60 MB of memory at worst, and 512 places."""

NETWORK_BYTES_MAX = {
    4: {24: 256 * KIB, 32: 192 * KIB},
    6: {48: 256 * KIB, 56: 224 * KIB, 64: 192 * KIB},
}
"""Weight of a network by IP version and length, the widest first: a home has a /64 to a /48. An
address has room for nearly a hundred nodes that say hello at one moment."""

LATELY_S = 4.0
"""Time in which one connection that has ended without a key is forgotten."""

LATELY_FREE, LATELY_MAX = 8, 64
"""Connections of late that crowd a network by one more, and those that are remembered: who is
pushed out has some tries, each of two connections."""

NETWORKS_MAX = 16_384
"""Networks whose connections of late are remembered."""

UNUSED_BYTES_MAX = 8 * KIB
"""Bytes of one connection that nobody could use yet, after which no more are taken until somebody
could: TLS and the longest hello are 6 kB."""

FORGIVEN_S = 32
"""Time in which the waste of a whole bound is forgiven: 6 kB a second of one address, which cost
gRPC 1 % of a core."""

CLEAN_BYTES = 4 * KIB
"""Waste of a network that counts as next to nothing: somebody has asked for a certificate twice."""

CALL_BYTES = 512
"""Bytes that a whole call accounts for."""

ANSWERED_PER_BYTE = 64
"""Bytes of answers that account for one that came: who reads says how far, in frames."""

UNPROVEN_MS = 20_000
"""Time in which a connection makes a whole call or proves a key, anew after each call."""

READ_BYTES_PER_MS = 4
"""Rate at which answers are read at least, where they take longer than `UNPROVEN_MS`."""

UNPROVEN_SHARE = 1 / 2
"""Part of the places that unproven connections get; a known key always finds one of the others."""


@dataclass(slots=True, eq=False)
class _Network:
    """A network, or everybody: its connections, and what they weigh."""

    name: object
    bytes_max: int
    outer: "_Network | None" = None
    lately: TokenBucket | None = None
    bytes: int = 0
    count: int = 0
    crowding: int = 0
    """Its connections, and some for those of late, as of the last change."""
    parts: "dict[object, _Network]" = field(default_factory=dict)
    connections: dict[int, None] = field(default_factory=dict)
    """Those of a network without parts, the oldest first."""

    def add(self, count: int, now_ms: int) -> None:
        """It has another connection, or one less."""
        self.count += count
        self.crowding = self.count
        if self.lately:
            spent = self.lately.wait_ms(LATELY_MAX, now_ms) / (1000 * LATELY_S)
            self.crowding += int(spent) // LATELY_FREE

    def outwards(self) -> "Iterator[_Network]":
        """It, and the networks around it."""
        network: _Network | None = self
        while network:
            yield network
            network = network.outer

    def oldest_of_most_crowded(self) -> int:
        """The connection that makes room in it."""
        network = self
        while network.parts:
            network = max(network.parts.values(), key=_crowding)
        return next(iter(network.connections))


_crowding = attrgetter("crowding")


@dataclass(slots=True)
class _Unproven:
    """A connection that has proven nothing."""

    network: _Network
    until_ms: int
    unused: int = 0


class Crowd:
    """The connections of one port, by numbers that their owner gives them. Methods that return
    numbers name connections that must be cut, and have forgotten them.
    """

    def __init__(self, places: int) -> None:
        """`places`: connections at once, proven ones among them."""
        self._places = max(2, places)
        self._everybody = _Network("", EVERYBODY_BYTES_MAX)
        self._forgiven = TokenBucket(EVERYBODY_BYTES_MAX / FORGIVEN_S, EVERYBODY_BYTES_MAX, 0)
        self._forgiven_by_bound = {
            bytes_max: TokenBuckets[object](bytes_max / FORGIVEN_S, bytes_max)
            for widths in NETWORK_BYTES_MAX.values()
            for bytes_max in widths.values()
        }
        self._lately = TokenBuckets[object](1 / LATELY_S, LATELY_MAX, NETWORKS_MAX)
        self._unproven: dict[int, _Unproven] = {}
        self._proven: set[int] = set()
        self.cuts = Counter[str](dict.fromkeys(REASONS, 0))
        """Connections that were cut, by reason."""

    def __len__(self) -> int:
        return len(self._unproven) + len(self._proven)

    @property
    def unproven(self) -> int:
        """Connections that have proven nothing."""
        return len(self._unproven)

    @property
    def bytes(self) -> int:
        """Bytes that they weigh together."""
        return self._everybody.bytes

    def come(self, number: int, host: str, now_ms: int) -> list[int]:
        """A connection has come from a host."""
        if self._is_wasteful(host, now_ms):
            self.cuts["waste"] += 1
            return [number]
        network = self._network(host, now_ms)
        network.connections[number] = None
        self._unproven[number] = _Unproven(network, now_ms + UNPROVEN_MS)
        for each in network.outwards():
            each.add(1, now_ms)
        cut = self._weigh(network, PLACE_BYTES, now_ms)
        while self.unproven > self._places * UNPROVEN_SHARE or len(self) > self._places:
            cut.append(self._make_room(self._everybody, now_ms))
        return cut

    def room(self, number: int) -> int:
        """Bytes that may come on a connection for now."""
        each = self._unproven.get(number)
        return UNUSED_BYTES_MAX - each.unused if each else UNUSED_BYTES_MAX

    def take(self, number: int, count: int, now_ms: int) -> list[int]:
        """Bytes have come on a connection, no more than it had room for."""
        if (each := self._unproven.get(number)) is None:
            return []
        each.unused += count
        return self._weigh(each.network, count, now_ms)

    def answer(self, number: int, count: int, now_ms: int) -> None:
        """Bytes have gone out on a connection."""
        if each := self._unproven.get(number):
            self._account(each, count // ANSWERED_PER_BYTE)
            read_ms = each.until_ms + count // READ_BYTES_PER_MS
            each.until_ms = max(each.until_ms, min(read_ms, now_ms + UNPROVEN_MS))

    def hear(self, number: int, now_ms: int) -> None:
        """A whole call has come on a connection."""
        if each := self._unproven.get(number):
            self._account(each, CALL_BYTES)
            each.until_ms = now_ms + UNPROVEN_MS

    def prove(self, number: int, now_ms: int) -> None:
        """A key that may come in was shown on a connection."""
        if each := self._unproven.get(number):
            for network in each.network.outwards():
                if network.lately:
                    network.lately.charge(-1, now_ms)
            self._remove(number, now_ms)
            self._proven.add(number)

    def leave(self, number: int, now_ms: int) -> None:
        """A connection has ended."""
        self._proven.discard(number)
        if number in self._unproven:
            self._waste(number, now_ms)

    def late(self, now_ms: int) -> list[int]:
        """The connections whose time is up."""
        late = [number for number, each in self._unproven.items() if each.until_ms <= now_ms]
        for number in late:
            self._cut(number, "time", now_ms)
        return late

    def _is_wasteful(self, host: str, now_ms: int) -> bool:
        buckets = [
            self._forgiven_by_bound[bytes_max].of(name, now_ms)
            for name, bytes_max in _networks(host)
        ]
        if any(bucket.wait_ms(1, now_ms) for bucket in buckets):
            return True
        clean = all(bucket.wait_ms(bucket.burst - CLEAN_BYTES, now_ms) == 0 for bucket in buckets)
        return not clean and self._forgiven.wait_ms(1, now_ms) > 0

    def _network(self, host: str, now_ms: int) -> _Network:
        network = self._everybody
        for name, bytes_max in _networks(host):
            if name not in network.parts:
                lately = self._lately.of(name, now_ms)
                network.parts[name] = _Network(name, bytes_max, network, lately)
            network = network.parts[name]
        return network

    def _remove(self, number: int, now_ms: int) -> None:
        """Weigh an unproven connection no more."""
        each = self._unproven.pop(number)
        del each.network.connections[number]
        for network in each.network.outwards():
            network.add(-1, now_ms)
        self._lighten(each.network, PLACE_BYTES + each.unused)

    def _waste(self, number: int, now_ms: int) -> None:
        """An unproven connection has ended, with bytes that nobody could use."""
        each = self._unproven[number]
        wasted = PLACE_BYTES + each.unused if each.unused else 0
        self._forgiven.charge(wasted, now_ms)
        for network in each.network.outwards():
            if network.lately:
                network.lately.take(1, now_ms)
                buckets = self._forgiven_by_bound[network.bytes_max]
                buckets.of(network.name, now_ms).charge(wasted, now_ms)
        self._remove(number, now_ms)

    def _account(self, each: _Unproven, count: int) -> None:
        """So many bytes of a connection have been of use."""
        used = min(count, each.unused)
        each.unused -= used
        self._lighten(each.network, used)

    def _weigh(self, network: _Network, count: int, now_ms: int) -> list[int]:
        cut = list[int]()
        around = list(network.outwards())
        for each in around:
            each.bytes += count
        for each in around:
            while each.bytes > each.bytes_max:
                cut.append(self._make_room(each, now_ms))
        return cut

    def _lighten(self, network: _Network, count: int) -> None:
        for each in list(network.outwards()):
            each.bytes -= count
            if each.outer and not each.bytes:
                del each.outer.parts[each.name]

    def _make_room(self, network: _Network, now_ms: int) -> int:
        number = network.oldest_of_most_crowded()
        self._cut(number, "place", now_ms)
        return number

    def _cut(self, number: int, reason: str, now_ms: int) -> None:
        self.cuts[reason] += 1
        self._waste(number, now_ms)


def _networks(host: str) -> Iterator[tuple[object, int]]:
    """The networks of a host with their bounds, the widest first. A name, and an address of this
    machine for itself, is one alone.
    """
    ip = ip_of(host)
    if ip is None or ip.is_loopback:
        yield host, NETWORK_BYTES_MAX[4][32]
        return
    for bits, bytes_max in NETWORK_BYTES_MAX[ip.version].items():
        yield (bits, int(ip) >> (ip.max_prefixlen - bits)), bytes_max
