"""`lockstep relay`: a node that does not train. It holds the payloads of the run and forwards them,
by digest.

    coordinator --opened, committed, skipped--> relay <--offers, parts--> every node, whoever can dial whom

Nodes behind home routers cannot dial each other, but all of them can dial a relay: each offers it
what it holds, the relay pulls that, verifies it by its digest and offers it on to all others. It is
no member: it has no lease, no vote and no share, and its copies make no payload available. Over
libp2p it is also where nodes find a way to each other.

Memory is bounded by links and parts, disk by `log_bytes_max`, what one peer may take by
`peer_limit`. When it is told to stop it drains: the coordinator tells everybody to do without it,
and transfers under way get some seconds to end.
"""

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from node.control.addresses import announced
from node.control.client import CoordinatorClient, RunInfo
from node.control.members import MemberList
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.links.protocol import Identity
from node.links.token_bucket import LIMIT_BYTES_PER_SECOND_MIN
from node.links.uplink import Uplink
from node.relay.self_check import SelfCheckShelf, self_test
from node.system.clock import own_clock_ms
from node.transports.factory import make_transports, parse_kinds
from protocol import wire_pb2 as wire
from protocol.addresses import parse_address
from protocol.commits import Commit, SignedCommit, open_commit
from protocol.errors import LocalProtocolError, RemoteProtocolError, SettingsError, UnavailableError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, peer_id
from protocol.traffic import MonotonicCounters, Overhead, unknown_overhead

log = logging.getLogger("lockstep.relay")

TRAFFIC_SECONDS = 1
"""How often the relay looks at what nobody owns of its traffic, and charges it to its upload
limit."""

DRAIN_SECONDS = 10
"""How long transfers under way may take when the relay is told to stop."""

COLLECTS_MAX = 8
"""Committed rounds whose payloads the relay still collects; the oldest is given up for a newer
one."""


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """What the operator of a relay chooses."""

    coordinator: str
    """Address of the coordinator, HOST:PORT or lockstep://HOST:PORT."""

    directory: Path
    """Where it keeps its key and the payloads."""

    listen: str = "0.0.0.0:50710"
    """Address and port for peers."""

    advertise: tuple[str, ...] = ()
    """Addresses at which peers reach it from outside, if they are others than `listen`."""

    links: str = "grpc"
    """Transports, the favourite first: "grpc", "libp2p", or both with a comma between."""

    log_bytes_max: int = 4 * 1024**3
    """Bytes of payloads on disk at most."""

    upload_limit: int = 0
    """Bytes per second that it uploads to all peers together; 0: as fast as the links carry."""

    peer_limit: int = 0
    """Bytes per second that one peer may take; 0: no limit but the fair order."""

    def __post_init__(self) -> None:
        parse_address(self.coordinator)
        parse_address(self.listen)
        for address in self.advertise:
            if not address.startswith("/"):  # libp2p's are judged by its transport
                parse_address(address)
        parse_kinds(self.links)
        if self.log_bytes_max < 1:
            raise SettingsError(f"log_bytes_max: expected at least 1, found {self.log_bytes_max}")
        for name in ("upload_limit", "peer_limit"):
            if (limit := getattr(self, name)) and limit < LIMIT_BYTES_PER_SECOND_MIN:
                raise SettingsError(
                    f"{name}: expected 0 or at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per second, found {limit}"
                )

    @property
    def slowest(self) -> int:
        """Bytes per second that one peer may take at most, all limits together; 0: no limit."""
        return min(filter(None, (self.upload_limit, self.peer_limit)), default=0)


class RelayProcess:
    """One relay of one run. `key` is its identity; `overhead` tells what nobody owns of its
    traffic.
    """

    def __init__(
        self,
        settings: RelaySettings,
        key: Ed25519PrivateKey,
        software: str,
        overhead: Overhead = unknown_overhead,
    ) -> None:
        self._settings, self._key, self._software = settings, key, software
        self._overhead = overhead
        self.peer: PeerId = peer_id(public_bytes(key))
        self._client = CoordinatorClient(parse_address(settings.coordinator), key)
        self._roster = MemberList()
        self._info: RunInfo | None = None
        self._mesh: Mesh | None = None
        self._swarm: Swarm | None = None
        self._payloads: PayloadLog | None = None
        self._collects: dict[int, asyncio.Task[None]] = {}
        self._left = asyncio.Event()
        self._finished = ""
        self.addresses: tuple[str, ...] = ()
        self.phase = "starts"
        self.round = -1
        self.tested = ""
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(_Collector(self))

    # ---- life

    async def start(self) -> None:
        """Listen, test itself, and be ready for rounds.

        Raises `UnavailableError`, `VersionError`, `SettingsError`, `StorageError`,
        `AddressInUseError`.
        """
        settings = self._settings
        self.phase = f"asks {self._client.address} for the run"
        info = self._info = await self._client.fetch_run()
        retention = info.spec.retention
        payloads = self._payloads = await asyncio.to_thread(
            PayloadLog,
            settings.directory / "payloads",
            retention.log_rounds,
            settings.log_bytes_max,
        )
        advertise = announced(settings.listen, settings.advertise, self._client.address)
        transports = make_transports(
            parse_kinds(settings.links), self._key, settings.listen, advertise, (), relay=True
        )
        identity = Identity(self._key, info.run_id, secrets.randbits(64))
        uplink = Uplink(settings.upload_limit or None, own_clock_ms)
        mesh = self._mesh = Mesh(
            identity, transports, uplink, own_clock_ms, settings.peer_limit or None
        )
        shelf = SelfCheckShelf()
        self._swarm = Swarm(
            self.peer,
            info.run_id,
            SwarmLimits(info.spec.rounds.payload_bytes_max, info.spec.membership.neighbours),
            log=payloads,
            link=mesh,
            report_holding=lambda round, digests: None,
            clock_ms=own_clock_ms,
            snapshots=shelf,
        )
        self.addresses = await self._swarm.start()
        self.phase = "tests itself"
        self.tested = await self_test(
            info.run_id, self.peer, self.addresses, shelf, settings.slowest
        )
        log.info("listens", extra={"addresses": self.addresses, "self_test": self.tested})

    async def run(self) -> str:
        """Relay until the run is finished or `leave` is called; why it ended, in words."""
        if self._swarm is None or self._info is None:
            raise LocalProtocolError("expected start() before run()")
        hello = wire.Hello(
            addresses=self.addresses, software=self._software, name="relay", relay=True
        )
        session = asyncio.create_task(self._client.run(self._info, hello, self))
        failing = asyncio.create_task(self._swarm.failed())
        left = asyncio.create_task(self._left.wait())
        counting = asyncio.create_task(self._watch_traffic())
        self.phase = "relays"
        try:
            await asyncio.wait({session, failing, left}, return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            if failing.done():
                failing.result()
            await self._drain()
        finally:
            for task in (session, failing, left, counting):
                task.cancel()
            await asyncio.gather(session, failing, left, counting, return_exceptions=True)
        return self._finished or "this relay was asked to leave"

    def leave(self) -> None:
        """Drain, then end `run`."""
        self._left.set()

    async def stop(self) -> None:
        """Close what `start` and `run` have opened. Safe to call twice."""
        collects = list(self._collects.values())
        for collect in collects:
            collect.cancel()
        await asyncio.gather(*collects, return_exceptions=True)
        if self._swarm:
            await self._swarm.stop()
            self._swarm = None
        await self._client.close()

    async def _drain(self) -> None:
        self.phase = "drains: told everybody to do without it"
        self._client.send(wire.NodeMessage(leave=wire.Leave(reason="the relay stops")))
        await self._client.flushed(2)
        assert self._mesh is not None, "a relay that runs has started"
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                await self._mesh.served()

    # ---- the coordinator client's listener

    def welcomed(self, welcome: wire.Welcome) -> None:
        """A new session: everything may have changed."""
        self._take_members(welcome.members)

    def received(self, message: wire.CoordinatorMessage) -> None:
        """Follow the rounds."""
        assert self._swarm is not None, "a session is opened after the start"
        match message.WhichOneof("kind"):
            case "members":
                self._take_members(message.members)
            case "opened":
                self._swarm.open(message.opened.round)
            case "committed":
                self._committed(message.committed)
            case "skipped":
                self._swarm.settle(message.skipped.round, [])
                self.round = max(self.round, message.skipped.round)
            case "finished":
                self._finished = message.finished.reason
                self._left.set()
            case _:
                pass  # of no use to who does not train

    def _take_members(self, told: wire.Members) -> None:
        assert self._swarm is not None, "a session is opened after the start"
        self._roster.take(told)
        self._swarm.set_members(self._roster.members, self._roster.relays)

    def _committed(self, told: wire.RoundCommitted) -> None:
        assert self._info is not None, "a session is opened after the start"
        signed = SignedCommit(told.commit.body, told.commit.signature)
        commit = open_commit(signed, self._info.coordinator_key)
        if commit.run_id != self._info.run_id or len(told.holders) != len(commit.entries):
            raise RemoteProtocolError(
                "expected a commit of this run with the holders of each entry"
            )
        self.round = max(self.round, commit.round)
        holders = [[PeerId(peer) for peer in each.peer_ids] for each in told.holders]
        if commit.round not in self._collects:
            self._collects[commit.round] = asyncio.create_task(self._collect(commit, holders))
        for old in sorted(self._collects)[:-COLLECTS_MAX]:
            self._collects[old].cancel()

    async def _collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> None:
        """Hold all payloads of a commit: who cannot be reached by their holders asks here."""
        assert self._swarm is not None, "a session is opened after the start"
        swarm, kept = self._swarm, [entry.digest for entry in commit.entries]
        try:
            with contextlib.suppress(UnavailableError):
                await swarm.collect(commit, holders)
        finally:
            del self._collects[commit.round]
            swarm.settle(commit.round, kept)

    async def _watch_traffic(self) -> None:
        while True:
            self._count_traffic()
            await asyncio.sleep(TRAFFIC_SECONDS)

    def _count_traffic(self) -> dict[str, int | None]:
        if self._swarm is None or self._mesh is None:
            return {}
        statistics = self._swarm.statistics.complete(self._client.traffic, self._overhead)
        self._mesh.uplink.carried(statistics.up_bytes)
        return statistics.document()

    # ---- for people

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        mesh, payloads = self._mesh, self._payloads
        return {
            "coordinator": self._client.address,
            "session": self._client.state,
            "peer_id": self.peer,
            "phase": self.phase,
            "addresses": list(self.addresses),
            "self_test": self.tested,
            "round": self.round,
            "members": len(self._roster.members),
            "links": mesh.document() if mesh else {},
            "traffic": self._count_traffic(),
            "payloads": {
                "bytes": payloads.held_bytes if payloads else 0,
                "bytes_max": self._settings.log_bytes_max,
            },
        }

    def unready(self) -> str:
        """Why nothing is relayed now; empty when it is."""
        if self.phase != "relays":
            return self.phase
        return "" if self._client.connected else self._client.state


class _Collector(Collector):
    """The relay's numbers as Prometheus families, read at each scrape."""

    def __init__(self, relay: RelayProcess) -> None:
        self._relay = relay
        self._traffic = MonotonicCounters()

    def collect(self) -> Iterator[Metric]:
        """All families."""
        status = self._relay.status()
        yield GaugeMetricFamily(
            "lockstep_relay_links", "Open links.", value=len(status["links"].get("open", ()))
        )
        yield GaugeMetricFamily(
            "lockstep_relay_round", "Newest round that was decided.", value=status["round"]
        )
        held = status["payloads"]["bytes"]
        yield GaugeMetricFamily("lockstep_relay_payload_log_bytes", "Payloads on disk.", value=held)
        traffic = CounterMetricFamily(
            "lockstep_relay_traffic_bytes", "Bytes on links.", labels=["owner", "direction"]
        )
        for name, count in self._traffic.update(status["traffic"]).items():
            owner, _, direction = name.removesuffix("_bytes").rpartition("_")
            if direction in ("up", "down"):
                traffic.add_metric([owner, direction], count)
        yield traffic
