"""Moves payloads between this node and its peers, and keeps them.

Which payload to offer to whom, and which to pull from where, is decided by
`node.gossip.machine.exchange`, which is pure. This module tells it what happens (`_feed`) and does
what it answers (`_act`). It has one task for each pull (`fetcher`), one for each peer that gets
offers (`outbox`), and one that ticks. A payload reaches the log on disk only after its digest was
verified, and is held and offered only after `check` has passed it, unless a commit names it.

    trainer --publish, collect, settle--> Swarm <--on_offer, read-- links <--- peers
                                            |  --offer, fetch--->
                                       payload log

All methods belong to one event loop; disk work runs in threads. When a background task dies it is
logged, and `failed` and every `collect` raise its exception: no failure is silent, and no wait goes
on after one.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from typing import assert_never

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.gossip.address_book import AddressBook
from node.gossip.announcements import Announcements
from node.gossip.background import Background
from node.gossip.blob_server import BlobServer, Shelf
from node.gossip.collector import Collector, NotRetainedError
from node.gossip.fault_log import FaultLog
from node.gossip.fetcher import Fetcher
from node.gossip.machine import events
from node.gossip.machine.events import SwarmLimits
from node.gossip.machine.exchange import Exchange
from node.gossip.offers import WireOffers
from node.gossip.outbox import Outbox
from node.gossip.parts import Parts, ReportParts, report_nothing
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.links.frames import PART_BYTES_MAX, Part
from node.links.network import BlobRange, PeerNetwork, Purpose
from node.links.upload_queue import Urgency
from node.traffic import Statistics
from protocol.codec.commits import Commit
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import Digest, PeerId, RunId, parse_peer_id, sha256
from protocol.sums.plan import SumPlan
from protocol.wire_pb2 import Offers

TICK_MS = 100
"""Pause between two looks of the exchange at its deadlines: a fraction of its shortest wait."""

__all__ = ["NotRetainedError", "Statistics", "Swarm", "SwarmLimits"]


class Swarm:
    """Payloads in and out of this node. `key` signs the announcements of its own payloads.

    `report_holding(round, digests)` is called with payloads of others that became held, and
    `report_parts(round, ranges by root)` with parts that this node adds; neither may raise.
    `clock_ms()` is this machine's monotonic clock, not an estimate of the coordinator's:
    backoffs and deadlines must survive that one's jumps.
    """

    def __init__(
        self,
        own: PeerId,
        run_id: RunId,
        limits: SwarmLimits,
        log: PayloadLog,
        network: PeerNetwork,
        *,
        check: PayloadCheck,
        key: Ed25519PrivateKey,
        report_holding: Callable[[int, list[Digest]], None],
        clock_ms: Callable[[], int],
        report_parts: ReportParts = report_nothing,
        snapshots: Shelf | None = None,
    ) -> None:
        self._run_id = run_id
        self._exchange = Exchange(own, limits)
        self._payload_log = log
        self._network = network
        self._report_holding = report_holding
        self._clock_ms = clock_ms
        self._peers = AddressBook(own)
        self._background = Background(self._wake)
        self._collector = Collector(self._exchange, log, self._background, self._feed)
        announcements = Announcements(run_id, key, clock_ms)
        common = self._exchange, log, announcements, self._background, self._feed
        size_max = limits.payload_bytes_max
        self.parts = Parts(*common, check=check, report=report_parts, size_max=size_max)
        """Rounds whose payloads are cut in parts."""
        known = self._exchange, announcements, self.parts.book, self._peers
        self._offers = WireOffers(*known, self._offered, self._part_offered)
        self._fetcher = Fetcher(
            size_max,
            log,
            network,
            self._background.spawn,
            self._pull_moved,
            judge=self.parts.judge,
            clock_ms=clock_ms,
        )
        self._outbox = Outbox(
            own,
            run_id,
            network,
            self._background.spawn,
            self._offer_failed,
            told=self._offers.made,
        )
        self._blob_server = BlobServer(log, snapshots, clock_ms)
        self._faults = FaultLog(run_id)

    # ---- for the trainer

    async def start(self) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises what `PeerNetwork.start` raises."""
        addresses = await self._network.start(self)
        self._background.spawn(self._tick())
        return addresses

    async def stop(self) -> None:
        """End the background tasks and stop the links; writes to the payload log are finished
        first.
        """
        await self._background.stop()
        await self._network.stop()

    async def failed(self) -> None:
        """Wait until a background task dies, and raise its exception."""
        await self._background.failed()

    def set_members(
        self,
        members: Mapping[PeerId, tuple[str, ...]],
        relays: Mapping[PeerId, tuple[str, ...]] | None = None,
    ) -> None:
        """Set the members of the run and its relays with their addresses; this node is among them
        if it is one.
        """
        self._peers.update(members, relays or {})
        self._network.keep(self._peers.by_importance)
        self._offers.announcements.set_members(frozenset(members))
        self._feed(events.MembersChanged(frozenset(members), frozenset(relays or ())))

    def open(
        self,
        round: int,
        near: frozenset[PeerId] | None = None,
        plan: SumPlan | None = None,
    ) -> None:
        """The coordinator opened a round: its payloads are exchanged from now on, among the peers
        that are `near`, if that is said; with a plan in parts, which go to the summers of their
        ranges.
        """
        self._feed(events.RoundStarted(round, near, plan))
        self._follow()
        if plan is None and self._payload_log.digests(round):  # from before a restart
            self._background.spawn(self._recall(round))

    async def publish(self, round: int, blob: bytes, samples: int = 0) -> Digest:
        """Keep this node's own payload, made of this number of samples; returns when it is in the
        log and being offered.
        """
        digest = sha256(blob)
        self._offers.announcements.make(round, digest, len(blob), samples)
        write = self._background.spawn_write(self._keep(round, digest, blob))
        await asyncio.shield(write)  # `stop` waits for it, even if the caller is cancelled
        return digest

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        """Wait until all that a commit's step needs is held; returns it in the order of
        `Commit.needed`.

        `holders[i]` are the known holders of that at place i. What a fresh commit names is there
        by invariant, so all members are asked again and again. Those of an old one may be kept by
        no member: `NotRetainedError` when all linked members failed several times to give one of
        them. The digest identifies a payload: its size is not compared with the commit's, which
        only repeats the author's announcement.
        """
        try:
            return await self._collector.collect(commit, holders)
        except LocalProtocolError:
            raise  # never begun: another collect of this round may be under way
        except BaseException:
            self._forget(commit.round)
            raise

    def settle(self, round: int, kept: Iterable[Digest] | None) -> None:
        """The round is decided and applied (or skipped: nothing kept): drop payloads that were not
        committed. None: all that is here of it stays.
        """
        self._forget(round)
        stays = None if kept is None else list(kept)
        self._background.spawn_write(asyncio.to_thread(self._payload_log.settle, round, stays))

    def holding(self, round: int) -> list[Digest]:
        """Payloads of others that this node holds in an undecided round: to report again after a
        reconnect.
        """
        return self._exchange.holding(round)

    def holds(self, commit: Commit) -> bool:
        """Whether all payloads of an unsettled commit are held, so that `collect` would not
        wait.
        """
        return all(self._exchange.holds(commit.round, each.digest) for each in commit.needed)

    def unsourced(self, round: int) -> list[Digest]:
        """Payloads that `collect` waits for and that no pull is under way for, sorted."""
        return [lack.digest for lack in self._exchange.lacking(round) if lack.source is None]

    @property
    def peers(self) -> list[PeerId]:
        """The other members, sorted."""
        return self._peers.others

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        """The parts of a peer's blob, to catch up with, unchecked: see `PeerNetwork.fetch`."""
        return self._network.fetch(self._peers.find(peer), blob, Purpose.CATCH_UP)

    # ---- for the status page

    @property
    def waiting_for(self) -> str:
        """The payloads that `collect` waits for and their sources, in words; empty when it waits
        for none.
        """
        return self._collector.waiting_for

    @property
    def newest_round(self) -> int | None:
        """Newest round that was opened or decided here."""
        return self._exchange.newest_round

    @property
    def greedy(self) -> frozenset[PeerId]:
        """Peers that take the same payloads from this node again and again."""
        return self._faults.greedy

    @property
    def breaking(self) -> frozenset[PeerId]:
        """Peers to which links break again and again while payloads come to this node."""
        return self._faults.breaking

    @property
    def statistics(self) -> Statistics:
        """Bytes up and down so far."""
        return Statistics.of(self._network.traffic, self._fetcher.duplicate_bytes)

    # ---- for the links, which have verified the sender and the count of offers

    def on_offer(self, offers: Offers) -> None:
        """Take a peer's offers. `RemoteProtocolError`: at least one was refused; the others were
        taken.
        """
        if offers.run_id != self._run_id:
            raise RemoteProtocolError(
                f"expected an offer of run {self._run_id}, got one of run {offers.run_id[:40]!r}"
            )
        sender, refusals = parse_peer_id(offers.sender), list[str]()
        for offered in offers.offers:
            try:
                refusals += self._offers.take(sender, offered)
            except RemoteProtocolError as error:
                refusals.append(str(error))
        if offers.idle:
            self._feed(events.Idle(sender))
        if refusals:
            raise RemoteProtocolError(refusals[0])

    async def read(
        self, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        """(size, bytes) of a payload or snapshot for a peer, or None when it is not held."""
        return await self._blob_server.read(digest, offset, count)

    def purpose(self, digest: Digest) -> Purpose:
        """The purpose of serving a blob: `PAYLOAD` if it belongs to an undecided round."""
        known = self._exchange.knows(digest) or self.parts.book.knows(digest)
        return Purpose.PAYLOAD if known else Purpose.CATCH_UP

    def urgency(self, peer: PeerId, digest: Digest) -> Urgency:
        """How urgent it is to serve a blob to a peer: a list of parts, which is short, is first."""
        if self.parts.book.knows(digest):
            return (0, 0)
        return self._exchange.urgency(peer, digest)

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        """Links are open to exactly these peers now."""
        self._feed(events.Linked(peers))

    def on_part(self, peer: PeerId, digest: Digest, count: int, size: int) -> None:
        """`count` bytes of a blob of `size` left for a peer."""
        self._faults.note_sent(peer, digest, count, size)

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        """A peer has taken the last byte of a blob."""
        self._feed(events.Served(peer, digest))

    # ---- the exchange

    def _offered(self, offer: events.Offered) -> list[str]:
        """Let the exchange hear of an offer; returns why it was refused."""
        refused = (events.Blame, events.Refuse)
        return [each.reason for each in self._feed(offer) if isinstance(each, refused)]

    def _part_offered(self, offer: events.Offered) -> list[str]:
        is_held = self._exchange.holds(offer.round, offer.digest)
        if is_held or self._payload_log.size(offer.digest) is None:
            return self._offered(offer)
        self._background.spawn(self.parts.recall(offer))  # from before a restart
        return []

    def _feed(self, event: events.Event) -> list[events.Effect]:
        effects = self._exchange.handle(event, self._clock_ms())
        for effect in effects:
            self._act(effect)
        if isinstance(event, events.Published | events.Found):
            self._wake()  # a round that is collected may lack just that
        return effects

    def _act(self, effect: events.Effect) -> None:
        match effect:
            case events.Offer():
                self._outbox.add(effect, self._peers.find(effect.peer))
            case events.Pull():
                self._fetcher.start(effect, self._peers.find(effect.source))
            case events.Withdraw():
                self._network.withdraw(effect.source, effect.digest, effect.unless_soon)
            case events.Drop():
                self._fetcher.drop(effect.digest)
            case events.ReportHolding():
                self._report_holding(effect.round, list(effect.digests))
            case events.NotRetained():
                self._collector.give_up(effect.round, effect.digest)
            case events.Blame():
                self._faults.record(effect)
            case events.Refuse():
                pass  # the link tells the peer, which offers again
            case _:
                assert_never(effect)

    def _pull_moved(self, event: events.Progressed | events.Pulled | events.PullFailed) -> None:
        self._feed(event)
        if not isinstance(event, events.Progressed):
            broke = isinstance(event, events.PullFailed) and event.failure is events.Failure.BROKEN
            self._faults.note_pull(event.source, broke=broke)
            self._wake()

    def _offer_failed(self, peer: PeerId, round: int) -> None:
        self._feed(events.OfferFailed(peer, round))

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._feed(events.Tick(self._network.idle))

    async def _keep(self, round: int, digest: Digest, blob: bytes) -> None:
        await asyncio.to_thread(self._payload_log.put, round, blob)
        self._feed(events.Published(round, digest, len(blob)))

    async def _recall(self, round: int) -> None:
        for digest in self._payload_log.digests(round):
            blob = await asyncio.to_thread(self._payload_log.get, digest)
            if blob is None:
                continue
            try:
                verdict = await asyncio.to_thread(self.parts.judge.begin(round, digest, 0), blob)
            except RemoteProtocolError:
                continue  # of a commit that was fetched before the journal was lost
            self.parts.judge.passed(round, digest, verdict)
            self._feed(events.Found(round, digest, len(blob)))

    def _forget(self, round: int) -> None:
        self._feed(events.Settled(round))
        self._follow()
        self._fetcher.forget(round)
        self._wake()

    def _follow(self) -> None:
        self._offers.announcements.follow(self._exchange.rounds)
        self.parts.follow(self._exchange.rounds)

    def _wake(self) -> None:
        self._collector.wake()
        self.parts.wake()
