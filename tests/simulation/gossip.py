"""Gossip over home links in virtual time: real `Exchange` and `Uploads` machines on a fluid
network (`tests.simulation.fluid`).

    Exchange --Offer----> (delay) --> Offered
             --Pull-----> (delay) --> Uploads.asked ... start --> flow of parts
                                      parts (delay) --> Progressed ... Pulled
             --Withdraw-> (delay) --> the flow ends after its present part, or never begins:
                                      WITHDRAWN
             --Drop-----> (delay) --> the flow ends; bytes that were under way are duplicates

Control messages take a delay and no room on the links. A receiver keeps the whole parts of a flow
that was dropped. Nothing is random unless `faults` is given. The exchange checks its invariants
after each event.
"""

import heapq
import itertools
import random
from collections.abc import Callable
from typing import assert_never

from node.gossip.machine import events
from node.gossip.machine.exchange import Exchange
from node.links.upload_queue import Uploads
from protocol.ids import Digest, sha256
from tests.simulation.fluid import Flow, Fluid
from tests.simulation.gossip_node import Fetch, Node, peer
from tests.simulation.gossip_setting import Result, Setting

TICK_MS = 100.0
DIAL_MS = 5_000.0
"""Time after which a peer that cannot be reached counts as such."""

END_MS = 3_600_000.0
"""Time after which a gossip makes no progress."""

PART_BYTES_MIN, PART_BYTES_MAX = 16 * 1024, 512 * 1024

OFFER_BYTES = 60
MESSAGE_BYTES = 80
"""Bytes of an offered payload, and of a control message with its frame: counted, not sent."""


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
        limits = events.SwarmLimits(payload_bytes_max=setting.size, neighbours=setting.neighbours)
        self._nodes: list[Node] = []
        for number in range(self._count):
            exchange = Exchange(peer(number), limits)
            self._nodes.append(Node(exchange, Uploads(exchange.urgency)))

    def run(self) -> Result:
        """Run until every member has every payload of the last round."""
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
            self._feed(number, events.MembersChanged(members, relays))
            if self._setting.links is not None:
                others = (
                    other
                    for other in range(self._count)
                    if other != number and self._linked(number, other)
                )
                self._feed(number, events.Linked(frozenset(map(peer, others))))
            self._tick(number)

    def _begin(self) -> None:
        jitter = random.Random(0)
        self._start_ms, self._everything = (
            self._now_ms,
            {self._own(number) for number in self._members},
        )
        for number, node in enumerate(self._nodes):
            node.done_ms, node.held = 0.0, set()
            self._feed(number, events.Settled(self._round - 1))
            self._feed(number, events.RoundStarted(self._round))
        for number in self._members:
            self._after(
                jitter.uniform(0, self._setting.jitter_ms),
                lambda number=number: self._publish(number),
            )

    def _own(self, number: int) -> Digest:
        return sha256(f"payload {number} of round {self._round}".encode())

    def _publish(self, number: int) -> None:
        self._hold(number, self._own(number))
        self._feed(number, events.Published(self._round, self._own(number), self._setting.size))

    def _hold(self, number: int, digest: Digest) -> None:
        node = self._nodes[number]
        node.held.add(digest)
        if node.held >= self._everything and not node.done_ms:
            node.done_ms = self._now_ms

    def _tick(self, number: int) -> None:
        self._feed(number, events.Tick(not self._nodes[number].asked))
        self._serve(number)
        self._after(TICK_MS, lambda: self._tick(number))

    # ---- the machines

    def _feed(self, number: int, event: events.Event) -> None:
        exchange = self._nodes[number].exchange
        effects = exchange.handle(event, int(self._now_ms))
        exchange.validate()
        for effect in effects:
            self._act(number, effect)

    def _act(self, number: int, effect: events.Effect) -> None:
        match effect:
            case events.Offer():
                self._offer(number, effect)
            case events.Pull():
                self._pull(number, effect)
            case events.Drop():
                self._drop(number, effect)
            case events.Withdraw():
                fetch = self._nodes[number].fetches[effect.digest]
                self._nodes[number].other_up += MESSAGE_BYTES
                self._after(
                    self._delay_ms(number, fetch.source),
                    lambda: self._withdrawn(fetch, effect.unless_soon),
                )
            case events.Blame() | events.Refuse() | events.NotRetained():
                assert isinstance(effect, events.Refuse), f"an honest peer is blamed: {effect}"
            case events.ReportHolding():
                pass
            case _:
                assert_never(effect)

    def _offer(self, number: int, offer: events.Offer) -> None:
        to = self._numbers[offer.peer]
        self._nodes[number].other_up += MESSAGE_BYTES + OFFER_BYTES * len(offer.payloads)
        lost = self._rng is not None and self._rng.random() < 0.1
        if lost or not self._linked(number, to):
            self._after(
                DIAL_MS, lambda: self._feed(number, events.OfferFailed(offer.peer, offer.round))
            )
            return
        if offer.idle:
            self._after(
                self._delay_ms(number, to), lambda: self._feed(to, events.Idle(peer(number)))
            )
        for digest, size in offer.payloads:
            offered = events.Offered(peer(number), offer.round, digest, size)
            self._after(self._delay_ms(number, to), lambda event=offered: self._feed(to, event))

    def _pull(self, number: int, pull: events.Pull) -> None:
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
            self._after(DIAL_MS, lambda: self._fail(fetch, events.Failure.UNAVAILABLE))

    def _drop(self, number: int, drop: events.Drop) -> None:
        fetch = self._nodes[number].fetches.pop(drop.digest)
        fetch.over = True
        self._nodes[number].other_up += MESSAGE_BYTES
        self._after(self._delay_ms(number, fetch.source), lambda: self._end(fetch))

    def _fail(self, fetch: Fetch, failure: events.Failure) -> None:
        if not fetch.over:
            fetch.over = True
            del self._nodes[fetch.target].fetches[fetch.digest]
            self._feed(
                fetch.target,
                events.PullFailed(fetch.digest, peer(fetch.source), failure, "simulated"),
            )

    # ---- a pull at its source

    def _asked(self, fetch: Fetch) -> None:
        node = self._nodes[fetch.source]
        if fetch.digest not in node.held:
            self._after(
                self._delay_ms(fetch.target, fetch.source),
                lambda: self._fail(fetch, events.Failure.ABSENT),
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
        """The taker wants no more parts than were begun."""
        node, upload = self._nodes[fetch.source], fetch.upload
        if fetch.flow is not None:
            fetch.cut = round(fetch.flow.left)
            fetch.lacking -= fetch.cut
            fetch.flow.left = 0
        elif node.asked.get(upload) is fetch and not (unless_soon and node.uploads.soon(upload)):
            self._end(fetch)
            self._after(
                self._delay_ms(fetch.source, fetch.target),
                lambda: self._fail(fetch, events.Failure.WITHDRAWN),
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
        """A quarter of the bytes that the path carries in 250 ms, as a power of two, as a link's
        window chooses.
        """
        rate = min(self._setting.homes[fetch.source].up, self._setting.homes[fetch.target].down)
        return max(PART_BYTES_MIN, min(PART_BYTES_MAX, 1 << (int(rate * 250 / 4).bit_length() - 1)))

    def _left(self, fetch: Fetch, count: int) -> None:
        """A part has left its sender."""
        delay_ms = self._delay_ms(fetch.source, fetch.target)
        self._nodes[fetch.source].payload_up += count
        self._after(delay_ms, lambda: self._part(fetch, count))
        self._after(2 * delay_ms, lambda: self._acknowledged(fetch, count))
        if fetch.cut and fetch.flow is not None and not fetch.flow.part:
            self._after(delay_ms, lambda: self._fail(fetch, events.Failure.WITHDRAWN))

    def _acknowledged(self, fetch: Fetch, count: int) -> None:
        node, upload = self._nodes[fetch.source], fetch.upload
        fetch.lacking -= count
        if node.asked.get(upload) is not fetch:
            return
        node.uploads.sent(upload, count, int(self._now_ms))
        if fetch.lacking == 0:
            self._end(fetch)
            if not fetch.cut:
                self._feed(fetch.source, events.Served(*upload))
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
                self._fail(fetch, events.Failure.UNAVAILABLE)
            elif self._setting.ordered:
                self._feed(number, events.Progressed(fetch.digest, peer(fetch.source), count))
            return
        fetch.over = True
        del node.fetches[fetch.digest]
        self._hold(number, fetch.digest)
        first_ms, first = fetch.first
        rate = int(1000 * (fetch.wanted - first) / max(1.0, self._now_ms - first_ms))
        self._feed(number, events.Pulled(fetch.digest, peer(fetch.source), fetch.size, rate))


def gossip(setting: Setting) -> Result:
    """Simulate one setting."""
    return Gossip(setting).run()
