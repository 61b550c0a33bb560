"""Gossip over home links in virtual time: real `Exchange` and `Uploads` machines on a fluid
network.

    Exchange --Offer--> (delay) --> Offered            control messages take a delay and no room on the links
             --Pull---> (delay) --> Uploads.asked ... start --> flow --parts, (delay)--> Progressed ... Pulled
             --Withdraw-> (delay) -> the flow ends after its present part, or never begins --> WITHDRAWN
             --Drop---> (delay) --> the flow ends; what was under way is a duplicate

Bytes are a fluid: a flow leaves through its sender's uplink and enters through its receiver's
downlink, and all flows share them max-min fairly, as TCP's do in the long run. Parts are what a
receiver keeps of a flow that was dropped. Not modelled: loss and slow start of TCP, jitter, buffers
in routers. Nothing is random unless `faults` is given."""

import hashlib
import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import assert_never

from node.gossip.machine.events import (
    Blame,
    Drop,
    Effect,
    Event,
    Failure,
    Idle,
    Linked,
    MembersChanged,
    Offer,
    Offered,
    OfferFailed,
    Progressed,
    Published,
    Pull,
    Pulled,
    PullFailed,
    Refuse,
    ReportHolding,
    RoundStarted,
    Served,
    Settled,
    SwarmLimits,
    Tick,
    Withdraw,
)
from node.gossip.machine.exchange import Exchange
from node.links.upload_queue import Upload, Uploads
from protocol.ids import Digest, PeerId, sha256

TICK_MS = 100.0
DIAL_MS = 5_000.0
"""How long it takes to learn that a peer cannot be reached."""

END_MS = 3_600_000.0
"""A gossip that takes an hour makes no progress."""

PART_BYTES_MIN, PART_BYTES_MAX = 16 * 1024, 512 * 1024

OFFER_BYTES = 60
MESSAGE_BYTES = 80
"""Of an offered payload, and of a control message with its frame: only counted, for their share."""


@dataclass(frozen=True, slots=True)
class Home:
    """A home link: bytes per millisecond up and down, and the delay to the middle of the internet,
    in milliseconds."""

    up: float
    down: float
    delay_ms: float


def home(up_mbit: float, down_mbit: float, rtt_ms: float) -> Home:
    """A home link in the usual units; the round trip is to the middle and back."""
    return Home(up_mbit * 125, down_mbit * 125, rtt_ms / 2)


EQUAL = home(20, 20, 25)
PROFILES = {
    "dsl-poor": home(0.4, 2, 70),
    "dsl": home(2, 16, 40),
    "cable": home(20, 220, 25),
    "fibre": home(300, 300, 10),
    "lte": home(8, 30, 70),
    "5g-fixed": home(18, 150, 55),
    "starlink": home(17, 118, 45),
}
"""Of the field: down and up as people buy them."""


def peer(number: int) -> PeerId:
    """The node of this number."""
    return PeerId(hashlib.sha256(f"node {number}".encode()).hexdigest()[:32])


def bound_ms(homes: Sequence[Home], size: int) -> float:
    """No gossip can be faster: everybody takes all payloads of others in, everybody's own goes out
    once, and what all take in goes through somebody's uplink. For equal links: N - 1 payloads over
    the slower direction."""
    others = len(homes) - 1
    everything = len(homes) * others * size / sum(home.up for home in homes)
    return max(everything, *(max(others * size / home.down, size / home.up) for home in homes))


# ---- the network


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way from one node to another."""

    source: int
    target: int
    left: float
    """Bytes after the present part."""
    part_max: float
    part: float
    """Bytes in the present part."""
    to_part: float
    """Bytes until the end of the present part."""
    rate: float = 0.0
    on_part: Callable[[int], None] = field(default=lambda count: None)

    @property
    def unfinished(self) -> int:
        """Bytes of the present part that have left."""
        return round(self.part - self.to_part)


class Fluid:
    """Flows on links, at max-min fair rates."""

    def __init__(self, homes: Sequence[Home]) -> None:
        self._homes = homes
        self._flows: dict[Flow, None] = {}
        self._stale = False

    def add(self, flow: Flow) -> None:
        self._flows[flow] = None
        self._stale = True

    def remove(self, flow: Flow) -> None:
        self._stale = self._flows.pop(flow, flow) is None or self._stale

    def next_ms(self) -> float:
        """Time until a part is complete."""
        if self._stale:
            self._share()
        return min((flow.to_part / flow.rate for flow in self._flows), default=float("inf"))

    def advance(self, elapsed_ms: float) -> list[Flow]:
        """Let time pass, at most `next_ms`; returns the flows that completed a part, ended ones
        among them."""
        complete = []
        for flow in self._flows:
            flow.to_part -= flow.rate * elapsed_ms
            if flow.to_part <= 1e-6 * flow.part:
                complete.append(flow)
        return complete

    def _share(self) -> None:
        """Progressive filling: the tightest link gives its flows equal shares, which bind them
        everywhere."""
        self._stale = False
        flows: dict[tuple[bool, int], dict[Flow, None]] = defaultdict(dict)
        for flow in self._flows:
            flows[True, flow.source][flow] = None
            flows[False, flow.target][flow] = None
        room = {
            link: self._homes[link[1]].up if link[0] else self._homes[link[1]].down
            for link in flows
        }
        while flows:
            tightest = min(flows, key=lambda link: room[link] / len(flows[link]))
            share = room[tightest] / len(flows[tightest])
            for flow in list(flows[tightest]):
                flow.rate = share
                for link in ((True, flow.source), (False, flow.target)):
                    room[link] = max(0.0, room[link] - share)
                    del flows[link][flow]
            flows = {link: on_it for link, on_it in flows.items() if on_it}


def push_to_all_ms(homes: Sequence[Home], size: int) -> float:
    """The naive way: everybody sends its payload to all others at once. Time until the last has
    arrived."""
    fluid, now_ms, end_ms, left = Fluid(homes), 0.0, 0.0, 0
    for source, target in itertools.permutations(range(len(homes)), 2):
        fluid.add(Flow(source, target, 0, 0, size, size))
        left += 1
    while left:
        elapsed_ms = fluid.next_ms()
        now_ms += elapsed_ms
        for flow in fluid.advance(elapsed_ms):
            fluid.remove(flow)
            left -= 1
            end_ms = max(end_ms, now_ms + homes[flow.source].delay_ms + homes[flow.target].delay_ms)
    return end_ms


# ---- the nodes


@dataclass(slots=True, eq=False)
class Fetch:
    """One pull, from the request to its end."""

    source: int
    target: int
    digest: Digest
    size: int
    """Bytes of the whole payload."""
    wanted: int
    """Bytes that were asked for."""
    lacking: int
    """Bytes of these that are not acknowledged."""
    started_ms: float
    first: tuple[float, int]
    """When its first bytes arrived, and how many: the rate is taken from there, without the time in
    the queue."""
    breaks: bool = False
    """It breaks off after its first part; what is on its way then is lost."""
    cut: int = 0
    """Bytes of these that its taker asked not to be sent any more."""
    flow: Flow | None = None
    over: bool = False
    """Its taker dropped it, or it broke."""

    @property
    def upload(self) -> Upload:
        """What it is at its source."""
        return Upload(peer(self.target), self.digest)


@dataclass(slots=True)
class Node:
    """One node: its machines, and what it has."""

    exchange: Exchange
    uploads: Uploads
    held: set[Digest] = field(default_factory=set)
    arrived: dict[Digest, int] = field(default_factory=lambda: defaultdict(int))
    fetches: dict[Digest, Fetch] = field(default_factory=dict)
    asked: dict[Upload, Fetch] = field(default_factory=dict)
    payload_up: int = 0
    other_up: int = 0
    duplicates: int = 0
    done_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class Setting:
    """What is simulated: everybody publishes one payload of `size` bytes, at 0 or up to `jitter_ms`
    later."""

    homes: tuple[Home, ...]
    size: int
    neighbours: int = 4
    relays: int = 0
    """The last so many nodes are relays."""
    links: frozenset[tuple[int, int]] | None = None
    """Pairs that can reach each other, the smaller first; None for all."""
    jitter_ms: float = 0.0
    ordered: bool = True
    """Whether requests wait in the order of `Uploads` and are told of progress; else all are served
    at once."""
    faults: int | None = None
    """A seed: a tenth of the offers is lost, and one transfer in twenty breaks off."""
    rounds: int = 1
    """Gossips one after the other: the graph differs, and in the first one sources are not known
    yet."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of it."""

    round_ms: tuple[float, ...]
    """From each round's start until every member has every payload."""
    done_ms: tuple[float, ...]
    """The same of the last round, for each member."""
    duplicate_share: float
    """Of the node that took in the most bytes for nothing: those over all payload bytes that it
    needed."""
    payload_up: tuple[int, ...]
    other_share: float
    """Control bytes over payload bytes, of all nodes."""


class Gossip:
    """One simulation."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._rng = None if setting.faults is None else random.Random(setting.faults)
        self._fluid = Fluid(setting.homes)
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._now_ms = self._start_ms = 0.0
        self._round = 0
        self._everything: set[Digest] = set()
        self._count = len(setting.homes)
        self._members = range(self._count - setting.relays)
        self._numbers = {peer(number): number for number in range(self._count)}
        limits = SwarmLimits(payload_bytes_max=setting.size, neighbours=setting.neighbours)
        self._nodes: list[Node] = []
        for number in range(self._count):
            exchange = Exchange(peer(number), limits)
            self._nodes.append(Node(exchange, Uploads(exchange.urgency)))

    def run(self) -> Result:
        """Until every member has every payload of the last round."""
        self._introduce()
        round_ms = list[float]()
        for round in range(self._setting.rounds):
            self._round = round
            self._begin()
            while not all(self._nodes[number].done_ms for number in self._members):
                self._step()
                assert self._now_ms < END_MS, f"no progress in an hour: {self.lacks()}"
            round_ms.append(self._now_ms - self._start_ms)
        done = tuple(self._nodes[number].done_ms - self._start_ms for number in self._members)
        needed = (len(self._members) - 1) * self._setting.size * self._setting.rounds
        return Result(
            tuple(round_ms),
            done,
            max(node.duplicates for node in self._nodes) / needed,
            tuple(node.payload_up for node in self._nodes),
            sum(node.other_up for node in self._nodes)
            / sum(node.payload_up for node in self._nodes),
        )

    def lacks(self) -> dict[int, int]:
        """How many payloads each member lacks."""
        return {
            number: len(self._everything - self._nodes[number].held) for number in self._members
        }

    # ---- time

    def _after(self, delay_ms: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._queue, (self._now_ms + delay_ms, next(self._order), action))

    def _step(self) -> None:
        until_part_ms, until_event_ms = self._fluid.next_ms(), self._queue[0][0] - self._now_ms
        if until_part_ms < until_event_ms:
            self._now_ms += until_part_ms
            for flow in self._fluid.advance(until_part_ms):
                self._complete(flow)
        else:
            self._fluid.advance(until_event_ms)
            self._now_ms, _, action = heapq.heappop(self._queue)
            action()

    def _complete(self, flow: Flow) -> None:
        count = round(flow.part)
        if flow.left <= 0:
            self._fluid.remove(flow)
        flow.part = flow.to_part = min(flow.part_max, flow.left)
        flow.left -= flow.part
        flow.on_part(count)

    def _delay_ms(self, one: int, other: int) -> float:
        return self._setting.homes[one].delay_ms + self._setting.homes[other].delay_ms

    def _linked(self, one: int, other: int) -> bool:
        links = self._setting.links
        return links is None or (min(one, other), max(one, other)) in links

    # ---- the round

    def _introduce(self) -> None:
        members = frozenset(map(peer, self._members))
        relays = frozenset(self._numbers) - members
        for number in range(self._count):
            self._feed(number, MembersChanged(members, relays))
            if self._setting.links is not None:
                others = (
                    other
                    for other in range(self._count)
                    if other != number and self._linked(number, other)
                )
                self._feed(number, Linked(frozenset(map(peer, others))))
            self._tick(number)

    def _begin(self) -> None:
        jitter = random.Random(0)
        self._start_ms, self._everything = (
            self._now_ms,
            {self._own(number) for number in self._members},
        )
        for number, node in enumerate(self._nodes):
            node.done_ms, node.held = 0.0, set()
            self._feed(number, Settled(self._round - 1))
            self._feed(number, RoundStarted(self._round))
        for number in self._members:
            self._after(
                jitter.uniform(0, self._setting.jitter_ms),
                lambda number=number: self._publish(number),
            )

    def _own(self, number: int) -> Digest:
        return sha256(f"payload {number} of round {self._round}".encode())

    def _publish(self, number: int) -> None:
        self._hold(number, self._own(number))
        self._feed(number, Published(self._round, self._own(number), self._setting.size))

    def _hold(self, number: int, digest: Digest) -> None:
        node = self._nodes[number]
        node.held.add(digest)
        if node.held >= self._everything and not node.done_ms:
            node.done_ms = self._now_ms

    def _tick(self, number: int) -> None:
        self._feed(number, Tick(not self._nodes[number].asked))
        self._serve(number)
        self._after(TICK_MS, lambda: self._tick(number))

    # ---- the machines

    def _feed(self, number: int, event: Event) -> None:
        for effect in self._nodes[number].exchange.handle(event, int(self._now_ms)):
            self._act(number, effect)

    def _act(self, number: int, effect: Effect) -> None:
        match effect:
            case Offer():
                self._offer(number, effect)
            case Pull():
                self._pull(number, effect)
            case Drop():
                self._drop(number, effect)
            case Withdraw():
                fetch = self._nodes[number].fetches[effect.digest]
                self._nodes[number].other_up += MESSAGE_BYTES
                self._after(
                    self._delay_ms(number, fetch.source),
                    lambda: self._withdrawn(fetch, effect.unless_soon),
                )
            case Blame() | Refuse():
                assert isinstance(effect, Refuse), f"an honest peer is blamed: {effect}"
            case ReportHolding():
                pass
            case _:
                assert_never(effect)

    def _offer(self, number: int, offer: Offer) -> None:
        to = self._numbers[offer.peer]
        self._nodes[number].other_up += MESSAGE_BYTES + OFFER_BYTES * len(offer.payloads)
        lost = self._rng is not None and self._rng.random() < 0.1
        if lost or not self._linked(number, to):
            self._after(DIAL_MS, lambda: self._feed(number, OfferFailed(offer.peer, offer.round)))
            return
        if offer.idle:
            self._after(self._delay_ms(number, to), lambda: self._feed(to, Idle(peer(number))))
        for digest, size in offer.payloads:
            offered = Offered(peer(number), offer.round, digest, size)
            self._after(self._delay_ms(number, to), lambda event=offered: self._feed(to, event))

    def _pull(self, number: int, pull: Pull) -> None:
        node, source = self._nodes[number], self._numbers[pull.source]
        lacking = pull.size - node.arrived[pull.digest]
        breaks = self._rng is not None and self._rng.random() < 0.05
        fetch = Fetch(
            source,
            number,
            pull.digest,
            pull.size,
            lacking,
            lacking,
            self._now_ms,
            (self._now_ms, 0),
            breaks,
        )
        node.fetches[pull.digest] = fetch
        node.other_up += MESSAGE_BYTES
        if self._linked(number, source):
            self._after(self._delay_ms(number, source), lambda: self._asked(fetch))
        else:
            self._after(DIAL_MS, lambda: self._fail(fetch, Failure.UNAVAILABLE))

    def _drop(self, number: int, drop: Drop) -> None:
        fetch = self._nodes[number].fetches.pop(drop.digest)
        fetch.over = True
        self._nodes[number].other_up += MESSAGE_BYTES
        self._after(self._delay_ms(number, fetch.source), lambda: self._end(fetch))

    def _fail(self, fetch: Fetch, failure: Failure) -> None:
        if not fetch.over:
            fetch.over = True
            del self._nodes[fetch.target].fetches[fetch.digest]
            self._feed(
                fetch.target, PullFailed(fetch.digest, peer(fetch.source), failure, "simulated")
            )

    # ---- a pull at its source

    def _asked(self, fetch: Fetch) -> None:
        node = self._nodes[fetch.source]
        if fetch.digest not in node.held:
            self._after(
                self._delay_ms(fetch.target, fetch.source),
                lambda: self._fail(fetch, Failure.ABSENT),
            )
            return
        upload = fetch.upload
        node.asked[upload] = fetch
        if self._setting.ordered:
            node.uploads.asked(upload, fetch.lacking, int(self._now_ms))
            self._serve(fetch.source)
        else:
            self._start(fetch)

    def _withdrawn(self, fetch: Fetch, unless_soon: bool) -> None:
        """The taker wants no more than what was begun."""
        node, upload = self._nodes[fetch.source], fetch.upload
        if fetch.flow is not None:
            fetch.cut = round(fetch.flow.left)
            fetch.lacking -= fetch.cut
            fetch.flow.left = 0
        elif node.asked.get(upload) is fetch and not (unless_soon and node.uploads.soon(upload)):
            self._end(fetch)
            self._after(
                self._delay_ms(fetch.source, fetch.target),
                lambda: self._fail(fetch, Failure.WITHDRAWN),
            )

    def _serve(self, number: int) -> None:
        for upload in self._nodes[number].uploads.start(int(self._now_ms)):
            self._start(self._nodes[number].asked[upload])

    def _start(self, fetch: Fetch) -> None:
        part = self._part_bytes(fetch)
        first = min(part, fetch.lacking)
        flow = Flow(fetch.source, fetch.target, fetch.lacking - first, part, first, first)
        flow.on_part = lambda count: self._left(fetch, count)
        fetch.flow = flow
        self._fluid.add(flow)

    def _part_bytes(self, fetch: Fetch) -> int:
        """A quarter of what the path carries in 250 ms, as a power of two: what a link's window
        comes to."""
        rate = min(self._setting.homes[fetch.source].up, self._setting.homes[fetch.target].down)
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, 1 << (int(rate * 250 / 4).bit_length() - 1)))

    def _left(self, fetch: Fetch, count: int) -> None:
        """A part has left its sender."""
        delay_ms = self._delay_ms(fetch.source, fetch.target)
        self._nodes[fetch.source].payload_up += count
        self._after(delay_ms, lambda: self._part(fetch, count))
        self._after(2 * delay_ms, lambda: self._acknowledged(fetch, count))
        if fetch.cut and fetch.flow is not None and not fetch.flow.part:
            self._after(delay_ms, lambda: self._fail(fetch, Failure.WITHDRAWN))

    def _acknowledged(self, fetch: Fetch, count: int) -> None:
        node, upload = self._nodes[fetch.source], fetch.upload
        fetch.lacking -= count
        if node.asked.get(upload) is not fetch:
            return
        node.uploads.sent(upload, count, int(self._now_ms))
        if fetch.lacking == 0:
            self._end(fetch)
            if not fetch.cut:
                self._feed(fetch.source, Served(*upload))
        self._serve(fetch.source)

    def _end(self, fetch: Fetch) -> None:
        """The source hears that a fetch is over, or sees that it is."""
        node, upload = self._nodes[fetch.source], fetch.upload
        if node.asked.get(upload) is fetch:
            del node.asked[upload]
            node.uploads.ended(upload)
        if fetch.flow is not None:
            self._fluid.remove(fetch.flow)
            node.payload_up += fetch.flow.unfinished
            if not fetch.breaks:
                self._nodes[fetch.target].duplicates += fetch.flow.unfinished
            fetch.flow = None
        self._serve(fetch.source)

    # ---- a pull at its taker

    def _part(self, fetch: Fetch, count: int) -> None:
        node, number = self._nodes[fetch.target], fetch.target
        if fetch.over:
            node.duplicates += 0 if fetch.breaks else count
            return
        if self._setting.ordered and fetch.first == (fetch.started_ms, 0) and count < fetch.wanted:
            fetch.first = self._now_ms, count
        node.arrived[fetch.digest] += count
        if node.arrived[fetch.digest] < fetch.size:
            if fetch.breaks:  # noticed at both ends at once
                self._end(fetch)
                self._fail(fetch, Failure.UNAVAILABLE)
            elif self._setting.ordered:
                self._feed(number, Progressed(fetch.digest, peer(fetch.source), count))
            return
        fetch.over = True
        del node.fetches[fetch.digest]
        self._hold(number, fetch.digest)
        first_ms, first = fetch.first
        rate = int(1000 * (fetch.wanted - first) / max(1.0, self._now_ms - first_ms))
        self._feed(number, Pulled(fetch.digest, peer(fetch.source), fetch.size, rate))


def links_among(*groups: Collection[int]) -> frozenset[tuple[int, int]]:
    """Everybody of a group can reach everybody else of it."""
    return frozenset(pair for group in groups for pair in itertools.combinations(sorted(group), 2))


def gossip(setting: Setting) -> Result:
    """Simulate one setting."""
    return Gossip(setting).run()
