"""The node among its peers: the shell around `node.gossip.machine.exchange` that moves payloads and
keeps them.

The exchange decides; this module lets it hear what happens (`_feed`) and does what it says
(`_act`): one task per pull (`node.gossip.fetcher`), one per peer that is being offered to, one that
ticks. Nothing reaches the log before its digest is right.

    trainer --publish, collect, settle--> Swarm <--on_offer, read-- link <--- peers
                                            |  --offer, fetch--->
                                          log

All methods belong to one event loop; disk work runs in threads. When a background task dies it is
logged, and `failed` and every `collect` raise its exception: never silence, never a wait for
nobody."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, assert_never

from node.gossip.blob_server import BlobServer, Shelf
from node.gossip.fault_log import FaultLog
from node.gossip.fetcher import Fetcher
from node.gossip.machine.events import (
    Blame,
    Drop,
    Effect,
    Event,
    Failure,
    Found,
    Idle,
    Linked,
    Lost,
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
    Want,
    Wanted,
    Withdraw,
)
from node.gossip.machine.exchange import Exchange
from node.gossip.outbox import Outbox
from node.gossip.payload_log import PayloadLog
from node.links.frames import PART_BYTES_MAX, Part
from node.links.network import BlobRange, PeerAddress, PeerNetwork, Purpose
from node.links.upload_queue import Urgency
from node.traffic import Statistics
from protocol.commits import Commit
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId, RunId, parse_digest, parse_peer_id, sha256, short
from protocol.limits import OFFERS_MAX
from protocol.wire_pb2 import Offers

TICK_MS = 100
"""How often the exchange looks at its deadlines: a fraction of its shortest wait."""

ABSENCES = 3
"""So often, seconds apart, must a member say that it does not hold a payload: a relay may just be
fetching it."""

__all__ = ["NotRetainedError", "Statistics", "Swarm", "SwarmLimits"]

_log = logging.getLogger(__name__)


class NotRetainedError(UnavailableError):
    """Every member was asked for a payload, and none gave it: its round is too old for their
    logs."""


class Swarm:
    """Payloads in and out of this node.

    `report_holding(round, digests)` is called with what became held and must not raise.
    `clock_ms()` is this machine's monotonic clock, not an estimate of the coordinator's: backoffs
    and deadlines must survive its jumps."""

    def __init__(
        self,
        own: PeerId,
        run_id: RunId,
        limits: SwarmLimits,
        log: PayloadLog,
        link: PeerNetwork,
        *,
        report_holding: Callable[[int, list[Digest]], None],
        clock_ms: Callable[[], int],
        snapshots: Shelf | None = None,
    ) -> None:
        self._own, self._run_id = own, run_id
        self._exchange = Exchange(own, limits)
        self._log = log
        self._shelves = BlobServer(log, snapshots, clock_ms)
        self._link = link
        self._report_holding = report_holding
        self._clock_ms = clock_ms
        self._members: Mapping[PeerId, tuple[str, ...]] = {}
        self._addresses: Mapping[PeerId, tuple[str, ...]] = {}  # of members and relays
        self._tasks: set[asyncio.Task[None]] = set()
        self._saves: set[asyncio.Task[None]] = set()
        self._pulls = Fetcher(limits.payload_bytes_max, log, link, self._spawn, self._pull_moved)
        self._offering = Outbox(
            own, run_id, link, self._spawn, lambda *failed: self._feed(OfferFailed(*failed))
        )
        self._collecting: dict[int, Commit] = {}
        self._linked: frozenset[PeerId] = frozenset()
        self._absences: dict[
            Digest, Counter[PeerId]
        ] = {}  # of what is being collected: who said how often "not here"
        self._news = asyncio.Event()
        self._failure: BaseException | None = None
        self._remarks = FaultLog(run_id)

    # ---- for the trainer

    async def start(self) -> tuple[str, ...]:
        """Listen; returns the addresses to announce. Raises what `PeerNetwork.start` raises."""
        addresses = await self._link.start(self)
        self._spawn(self._tick())
        return addresses

    async def stop(self) -> None:
        """End what runs in the background and stop the link; what is being written to the log is
        finished first."""
        background = self._tasks - self._saves
        for task in background:
            task.cancel()
        await asyncio.gather(*background, *self._saves, return_exceptions=True)
        await self._link.stop()

    async def failed(self) -> None:
        """Wait until a background task dies, and raise what killed it."""
        while self._failure is None:
            await self._news.wait()
        raise self._failure

    def set_members(
        self,
        members: Mapping[PeerId, tuple[str, ...]],
        relays: Mapping[PeerId, tuple[str, ...]] | None = None,
    ) -> None:
        """The members of the run and its relays with their addresses, this node included if it is
        one."""
        self._members = dict(members)
        self._addresses = {
            **(relays or {}),
            **members,
        }  # relays first: a link to one leads to everybody
        self._link.keep([self._remote(peer) for peer in self._addresses if peer != self._own])
        self._feed(MembersChanged(frozenset(members), frozenset(relays or ())))

    def open(self, round: int) -> None:
        """The coordinator opened a round: its payloads are exchanged from now on."""
        self._feed(RoundStarted(round))
        if self._log.digests(round):  # from before a restart
            self._spawn(self._recall(round))

    async def publish(self, round: int, blob: bytes) -> Digest:
        """Keep this node's own payload; returns when it is in the log and being offered."""
        digest = sha256(blob)
        task = self._spawn(self._keep(round, digest, blob))
        self._saves.add(task)
        await asyncio.shield(task)  # `stop` waits for it, whatever becomes of who has asked
        return digest

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        """The payloads of a commit in the order of its entries, as soon as all of them are held.

        A fresh commit is available by invariant, so this asks every member again and again. An old
        one may be kept by nobody: when every member that this node is linked to has said several
        times that it does not hold one of its payloads, that is a `NotRetainedError`. `holders[i]`
        is who is known to hold entry i. The digest says what a payload is: its size is not compared
        with the commit's, which only repeats what the author announced."""
        if len(holders) != len(commit.entries):
            raise LocalProtocolError(
                f"expected holders of {len(commit.entries)} entries, got {len(holders)}"
            )
        if commit.round in self._collecting:
            raise LocalProtocolError(
                f"expected one collect of round {commit.round} at a time, got a second"
            )
        self._collecting[commit.round] = commit
        self._absences |= {entry.digest: Counter() for entry in commit.entries}
        done = False
        try:
            payloads = await self._collected(commit, holders)
            done = True
            return payloads
        finally:
            del self._collecting[commit.round]
            for entry in commit.entries:
                self._absences.pop(entry.digest, None)
            if not done:
                self._forget(commit.round)

    def settle(self, round: int, kept: Iterable[Digest]) -> None:
        """The round is decided and applied (or skipped: nothing kept): drop what was not
        committed."""
        self._forget(round)
        self._saves.add(self._spawn(asyncio.to_thread(self._log.settle, round, list(kept))))

    async def kept(self, digest: Digest) -> bytes | None:
        """A payload of this node's own log, None when it is not there (any more)."""
        return await asyncio.to_thread(self._log.get, digest)

    def holding(self, round: int) -> list[Digest]:
        """Payloads of others that this node holds in an undecided round: to report again after a
        reconnect."""
        return self._exchange.holding(round)

    def holds(self, commit: Commit) -> bool:
        """Whether all payloads of an unsettled commit are held, so that `collect` would not
        wait."""
        return all(self._exchange.holds(commit.round, entry.digest) for entry in commit.entries)

    @property
    def peers(self) -> list[PeerId]:
        """The other members, sorted."""
        return sorted(self._members.keys() - {self._own})

    def fetch(self, peer: PeerId, blob: BlobRange) -> AsyncGenerator[Part, None]:
        """The parts of a peer's blob, to catch up with, unchecked: see `PeerNetwork.fetch`."""
        return self._link.fetch(self._remote(peer), blob, Purpose.CATCH_UP)

    @property
    def waiting_for(self) -> str:
        """What `collect` lacks and from whom, in words; empty when it lacks nothing."""
        return "; ".join(
            filter(None, (self._in_words(commit) for _, commit in sorted(self._collecting.items())))
        )

    @property
    def statistics(self) -> Statistics:
        """Bytes up and down so far."""
        return Statistics.of(self._link.traffic, self._pulls.duplicate_bytes)

    # ---- for the link

    def on_offer(self, offers: Offers) -> None:
        """Take a peer's offers. `RemoteProtocolError`: at least one was refused; the others were
        taken."""
        if offers.run_id != self._run_id:
            raise RemoteProtocolError(
                f"expected an offer of run {self._run_id}, got one of run {offers.run_id[:40]!r}"
            )
        if len(offers.offers) > OFFERS_MAX:
            raise RemoteProtocolError(
                f"expected at most {OFFERS_MAX} offers in a message, got {len(offers.offers)}"
            )
        sender, refusals = parse_peer_id(offers.sender), list[str]()
        for offer in offers.offers:
            event = Offered(sender, offer.round, parse_digest(offer.digest), offer.payload_bytes)
            refusals += [
                effect.reason for effect in self._feed(event) if isinstance(effect, Blame | Refuse)
            ]
        if offers.idle:
            self._feed(Idle(sender))
        if refusals:
            raise RemoteProtocolError(refusals[0])

    async def read(
        self, digest: Digest, offset: int, count: int = PART_BYTES_MAX
    ) -> tuple[int, bytes] | None:
        """(size, bytes) of a payload or snapshot for a peer, or None when it is not held."""
        return await self._shelves.read(digest, offset, count)

    def purpose(self, digest: Digest) -> Purpose:
        """Whether a blob belongs to an undecided round."""
        return Purpose.PAYLOAD if self._exchange.knows(digest) else Purpose.CATCH_UP

    def urgency(self, peer: PeerId, digest: Digest) -> Urgency:
        """How urgent it is to serve a blob to a peer."""
        return self._exchange.urgency(peer, digest)

    def on_linked(self, peers: frozenset[PeerId]) -> None:
        """Links are open to these peers now."""
        self._linked = peers
        self._feed(Linked(peers))

    def on_served(self, peer: PeerId, digest: Digest) -> None:
        """A peer has taken the last byte of a blob."""
        self._feed(Served(peer, digest))

    # ---- the exchange

    def _feed(self, event: Event) -> list[Effect]:
        effects = self._exchange.handle(event, self._clock_ms())
        for effect in effects:
            self._act(effect)
        return effects

    def _act(self, effect: Effect) -> None:
        match effect:
            case Offer():
                self._offering.add(effect, self._remote(effect.peer))
            case Pull():
                self._pulls.start(effect, self._remote(effect.source), self._clock_ms)
            case Withdraw():
                self._link.withdraw(effect.source, effect.digest, effect.unless_soon)
            case Drop():
                self._pulls.drop(effect.digest)
            case ReportHolding():
                self._report_holding(effect.round, list(effect.digests))
            case Blame():
                self._remarks.log(effect)
            case Refuse():
                pass  # the link tells the peer, who offers again
            case _:
                assert_never(effect)

    def _pull_moved(self, event: Progressed | Pulled | PullFailed) -> None:
        if (
            isinstance(event, PullFailed)
            and event.failure is Failure.ABSENT
            and event.digest in self._absences
        ):
            self._absences[event.digest][event.source] += 1
        self._feed(event)
        if not isinstance(event, Progressed):
            self._wake()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_MS / 1000)
            self._feed(Tick(self._link.idle))

    async def _keep(self, round: int, digest: Digest, blob: bytes) -> None:
        await asyncio.to_thread(self._log.put, round, blob)
        self._feed(Published(round, digest, len(blob)))
        self._wake()

    async def _recall(self, round: int) -> None:
        for digest in self._log.digests(round):
            blob = await asyncio.to_thread(self._log.get, digest)
            if blob is not None:
                self._feed(Found(round, digest, len(blob)))

    def _forget(self, round: int) -> None:
        self._feed(Settled(round))
        self._pulls.forget(round)
        self._wake()

    # ---- collecting

    async def _collected(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        """Ask for what the log lacks, and look again whenever something arrived."""
        payloads: dict[Digest, bytes] = {}
        wants: list[Want] = []
        for entry, known in zip(commit.entries, holders, strict=True):
            blob = await asyncio.to_thread(self._log.get, entry.digest)
            if blob is not None:
                payloads[entry.digest] = blob
            size = entry.payload_bytes if blob is None else len(blob)
            wants.append(Want(entry.digest, size, tuple(known), held=blob is not None))
        self._feed(Wanted(commit.round, tuple(wants)))
        while True:
            if self._failure is not None:
                raise self._failure
            news = self._news
            for entry in commit.entries:
                if entry.digest not in payloads and self._exchange.holds(
                    commit.round, entry.digest
                ):
                    await self._take(entry.digest, payloads)
            if all(entry.digest in payloads for entry in commit.entries):
                return [payloads[entry.digest] for entry in commit.entries]
            for entry in commit.entries:
                if entry.digest not in payloads and self._kept_by_nobody(entry.digest):
                    name = f"payload {entry.digest.hex()[:8]} of round {commit.round}"
                    raise NotRetainedError(
                        f"no member keeps {name} any more ({len(self.peers)} asked)"
                    )
            await news.wait()  # set already if something arrived meanwhile

    def _kept_by_nobody(self, digest: Digest) -> bool:
        absences = self._absences[digest]
        return bool(absences) and all(
            absences[peer] >= ABSENCES for peer in self._linked & set(self.peers)
        )

    async def _take(self, digest: Digest, payloads: dict[Digest, bytes]) -> None:
        blob = await asyncio.to_thread(self._log.get, digest)
        if blob is None:
            self._feed(Lost(digest))
        else:
            payloads[digest] = blob

    def _in_words(self, commit: Commit) -> str:
        lacks = {lack.digest: lack for lack in self._exchange.lacking(commit.round)}
        words = []
        for entry in commit.entries:
            if lack := lacks.get(entry.digest):
                where = (
                    f"pulling from {short(lack.source)}"
                    if lack.source
                    else f"{lack.holders} known holders, none free"
                )
                words.append(f"{short(entry.author)}'s {entry.payload_bytes} bytes ({where})")
        count = f"{len(words)} of {len(commit.entries)} payloads"
        return f"round {commit.round} waits for {count}: {', '.join(words)}" if words else ""

    # ---- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._saves.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            _log.error("a background task of the swarm died: %s", error, exc_info=error)
            self._failure = self._failure or error
            self._wake()

    def _wake(self) -> None:
        """Let every `collect` look again."""
        self._news.set()
        self._news = asyncio.Event()

    def _remote(self, peer: PeerId) -> PeerAddress:
        return PeerAddress(peer, self._addresses.get(peer, ()))
