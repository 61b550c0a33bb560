"""`lockstep relay`: a node that does not train. It holds the payloads of the run and forwards them,
by digest.

    coordinator --opened, committed, skipped--> relay <--offers, parts--> every node

    starting --> asking --> testing --> relaying --told to stop, run finished--> draining

Nodes behind home routers cannot dial each other, but all of them can dial a relay: each offers it
the payloads that it holds, the relay pulls them, verifies them by digest and offers them to all
others. It is no member: it has no lease, no vote and no share, and its copies make no payload
available. With an archive it keeps them all (`node.relay.archive`); with `sums` it adds for others
(`node.relay.adding`). Over libp2p it is also where nodes find a way to each other.

Memory is bounded by links and parts, disk by `disk`, the rate of one peer by `peer_limit`.
A relay that is told to stop drains: the coordinator tells every node to do without it, and
transfers under way get some seconds to end.
"""

import asyncio
import contextlib
import logging
import secrets
import sys
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.control.addresses import announced
from node.control.client import CoordinatorClient
from node.control.heads import HeadKeeper
from node.gossip.parts import report_nothing
from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.relay.adder import AddingRole
from node.relay.archive import ARCHIVE_NAME, Archive
from node.relay.inbox import RelayInbox
from node.relay.metrics import registry
from node.relay.self_check import SelfCheckShelf, check_reachable
from node.relay.settings import RelaySettings
from node.system.absence import watch_absence
from node.system.clock import own_clock_ms
from node.traffic import Statistics
from node.transports.dial_guard import DialGuard
from node.transports.factory import make_transports
from node.transports.kinds import parse_kinds
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.codec.payload_header import Blob, Header, read_header
from protocol.errors import LocalProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, peer_id
from protocol.limits import CONNECTIONS_MAX
from protocol.planner.parameters import has_layout
from protocol.run_info import RunInfo
from protocol.traffic import Overhead, unknown_overhead

log = logging.getLogger("lockstep.relay")

TRAFFIC_S = 1
"""Pause between two looks at the traffic, which is charged to the upload limit."""

DRAIN_S = 10
"""Longest time for transfers under way when the relay is told to stop."""

GOODBYE_S = 2
"""Longest wait of a relay that stops for its goodbye to reach the coordinator."""


class Phase(Enum):
    """The life of a relay; the value is for people."""

    STARTING = "starts"
    ASKING = "asks the coordinator for the run"
    TESTING = "tests itself"
    RELAYING = "relays"
    DRAINING = "drains: told every node to do without it"


@dataclass(frozen=True, slots=True)
class StartedRelay:
    """The parts of a relay that `start` has made."""

    info: RunInfo
    payloads: PayloadLog
    mesh: Mesh
    swarm: Swarm
    inbox: RelayInbox
    archive: Archive | None
    """None for a relay that keeps what members keep."""
    heads: HeadKeeper


class RelayProcess:
    """One relay of one run. `key` is its identity; `overhead` tells the traffic that no part of
    the relay counts.
    """

    def __init__(
        self,
        settings: RelaySettings,
        key: Ed25519PrivateKey,
        software: str,
        overhead: Overhead = unknown_overhead,
        judge: Callable[[int, Blob], Header] | None = None,
    ) -> None:
        """`judge(round, payload)` decodes a payload, and the coordinator is told which payloads of
        others are held: as an auditor does. Without it their headers are read, and nothing is told.
        """
        self._settings, self._key, self._software = settings, key, software
        self._overhead, self._judge = overhead, judge
        link = parse_link(settings.coordinator).with_token(settings.token)
        self._client = CoordinatorClient(link, key)
        self._started: StartedRelay | None = None
        self._stopping = asyncio.Event()
        self._end_reason = f"this {settings.name} was stopped by its owner"
        self._phase = Phase.STARTING
        self._self_check = ""
        self.addresses: tuple[str, ...] = ()
        self.registry = registry(self.status)

    @property
    def peer(self) -> PeerId:
        """The relay's id, as peers know it."""
        return peer_id(public_bytes(self._key))

    @property
    def self_check(self) -> str:
        """The result of the self-check, in words; empty before it."""
        return self._self_check

    @property
    def phase(self) -> Phase:
        """The part of its life that the relay is in."""
        return self._phase

    # ---- life

    async def start(self, connections_max: int = CONNECTIONS_MAX) -> None:
        """Listen, check that peers can reach this relay, and be ready for rounds; peers may open
        `connections_max` connections.

        Raises `UnavailableError`, `VersionError`, `SettingsError`, `ShortageError`, `StorageError`,
        `AddressInUseError`, and `EquivocationError` when this relay has the proof that the
        coordinator signs two histories.
        """
        settings, fetch = self._settings, self._client.calls.fetch_commits
        self._phase = Phase.ASKING
        info = await self._client.calls.fetch_run()
        heads = await asyncio.to_thread(HeadKeeper, info, settings.directory, fetch)
        payloads = await asyncio.to_thread(
            PayloadLog,
            settings.directory / "payloads",
            sys.maxsize if settings.archive else info.spec.retention.log_rounds,
            settings.disk,
        )
        identity = Identity(self._key, info.run_id, secrets.randbits(64), heads.heads)
        mesh, shelf = self._make_mesh(identity, connections_max), SelfCheckShelf()
        judge = self._judge or (lambda round, payload: read_header(payload))
        role = self._adding_role(info)
        check = PayloadCheck(info.run_id, judge, *((role.part_header_of,) if role else ()))
        swarm = Swarm(
            self.peer,
            info.run_id,
            SwarmLimits(info.spec.rounds.payload_bytes_max, info.spec.membership.neighbours),
            log=payloads,
            network=mesh,
            check=check,
            key=self._key,
            report_holding=partial(self._report_holding, check),
            report_parts=role.report_parts if role else report_nothing,
            clock_ms=own_clock_ms,
            snapshots=shelf,
        )
        summer = role.adder_of(swarm.parts) if role else None
        inbox = RelayInbox(info, swarm, self._run_finished, heads, summer)
        archive = self._archive(info, payloads, mesh, inbox)
        self._started = StartedRelay(info, payloads, mesh, swarm, inbox, archive, heads)
        self.addresses = await swarm.start()
        self._phase = Phase.TESTING
        self._self_check = await check_reachable(
            info.run_id,
            self.peer,
            self.addresses,
            shelf,
            settings.slowest,
            secure=self._client.secure,
            p2pd_sha256=settings.p2pd_sha256,
        )
        about = {"addresses": ",".join(self.addresses), "self_check": self._self_check}
        log.info("relay listens", extra=about)

    def _adding_role(self, info: RunInfo) -> AddingRole | None:
        """What a relay needs that adds; None for one that does not offer to, or where no round has
        summers.
        """
        if not self._settings.sums:
            return None
        if not info.spec.rounds.sums or not has_layout(info.spec.model):
            log.warning("no round of this run has summers: nothing will be added here")
            return None
        from node.relay.adding import adding_role  # loads numpy, which other relays do without

        return adding_role(info, self._key, self._client.send)

    def _archive(
        self, info: RunInfo, payloads: PayloadLog, mesh: Mesh, inbox: RelayInbox
    ) -> Archive | None:
        if not self._settings.archive:
            return None
        return Archive(
            info,
            self.peer,
            payloads,
            mesh,
            self._client.members,
            collected=inbox.collected,
            path=self._settings.directory / ARCHIVE_NAME,
        )

    def _report_holding(self, check: PayloadCheck, round: int, digests: list[Digest]) -> None:
        if self._judge:
            authors = [check.author_of(digest) or "" for digest in digests]
            holding = wire.Holding(round=round, digests=digests, authors=authors)
            self._client.send(wire.NodeMessage(holding=holding))

    def _make_mesh(self, identity: Identity, connections_max: int) -> Mesh:
        settings = self._settings
        advertise = announced(settings.listen, settings.advertise, self._client.address)
        transports = make_transports(
            parse_kinds(settings.links),
            self._key,
            settings.listen,
            advertise,
            (),
            relay=True,
            secure=self._client.secure,
            guard=DialGuard(self._client.address),
            p2pd_sha256=settings.p2pd_sha256,
            connections_max=connections_max,
        )
        uplink = Uplink(settings.upload_limit or None, own_clock_ms)
        return Mesh(identity, transports, uplink, own_clock_ms, settings.peer_limit or None)

    async def run(self) -> str:
        """Relay until the run is finished or `leave` is called; returns the reason in words.
        Raises `EquivocationError` when the coordinator has signed two histories.
        """
        parts = self.started
        hello = wire.Hello(
            addresses=self.addresses,
            software=self._software,
            name=self._settings.name,
            relay=True,
            sums=parts.inbox.adds,
        )
        session = asyncio.create_task(self._client.run(parts.info, hello, parts.inbox))
        failing = asyncio.create_task(self._failed(parts, hello))
        left = asyncio.create_task(self._stopping.wait())
        charging = asyncio.create_task(self._charge_traffic(parts.mesh))
        silence_s = self._client.silence_s(parts.info.spec.membership.heartbeat_ms)
        watching = asyncio.create_task(
            watch_absence(lambda seconds: self._client.reopen(), silence_s)
        )
        self._phase = Phase.RELAYING
        try:
            await asyncio.wait({session, failing, left}, return_when=asyncio.FIRST_COMPLETED)
            if session.done():
                session.result()
            if failing.done():
                failing.result()
            await self._drain(parts.mesh)
        finally:
            tasks = (session, failing, left, charging, watching)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return self._end_reason

    async def _failed(self, parts: StartedRelay, hello: wire.Hello) -> None:
        """Wait until a task in the background fails, and raise its exception."""
        watching = parts.heads.watch(hello, self._client.send)
        failing = [asyncio.ensure_future(parts.swarm.failed()), asyncio.ensure_future(watching)]
        if parts.archive:
            failing.append(asyncio.ensure_future(parts.archive.fill(parts.heads.fetch)))
        try:
            await asyncio.gather(*failing)
        finally:
            for task in failing:
                task.cancel()

    def leave(self) -> None:
        """Drain, and end `run`."""
        self._stopping.set()

    async def stop(self) -> None:
        """Close everything that `start` and `run` have opened. Safe to call twice."""
        if self._started:
            await self._started.inbox.stop()
            await self._started.swarm.stop()
            self._started = None
        await self._client.close()

    async def _drain(self, mesh: Mesh) -> None:
        self._phase = Phase.DRAINING
        self._client.send(wire.NodeMessage(leave=wire.Leave(reason="the relay stops")))
        await self._client.flush(GOODBYE_S)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                await mesh.served()

    def _run_finished(self, reason: str) -> None:
        self._end_reason = reason
        if not self._settings.archive:  # an archive is of use to those who come later
            self._stopping.set()

    async def _charge_traffic(self, mesh: Mesh) -> None:
        """Charge bytes that no link counts, as those of the operating system, to the uplink."""
        while traffic := self._traffic():
            mesh.uplink.carried(traffic.up_bytes)
            await asyncio.sleep(TRAFFIC_S)

    def _traffic(self) -> Statistics | None:
        if self._started is None:
            return None
        return self._started.swarm.statistics.complete(self._client.traffic, self._overhead)

    @property
    def started(self) -> StartedRelay:
        """The parts that `start` has made; `LocalProtocolError` before that."""
        if self._started is None:
            raise LocalProtocolError("expected start() first, it was not called or failed")
        return self._started

    # ---- for people

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        started, traffic = self._started, self._traffic()
        return {
            "coordinator": self._client.address,
            "session": self._client.words,
            "peer_id": self.peer,
            "phase": self._phase.value,
            "addresses": list(self.addresses),
            "self_test": self._self_check,
            "round": started.inbox.round if started else -1,
            "members": self._client.members.member_count,
            "links": started.mesh.document() if started else {},
            "heads": started.heads.document() if started else {},
            "traffic": traffic.document() if traffic else {},
            "payloads": {
                "bytes": started.payloads.held_bytes if started else 0,
                "bytes_max": self._settings.disk,
            },
            "archive": started.archive.document() if started and started.archive else {},
            "adds": bool(started and started.inbox.adds),
        }

    @property
    def client(self) -> CoordinatorClient:
        """The line to the coordinator."""
        return self._client

    def unready(self) -> str:
        """Why nothing is relayed now; empty when the relay is at work."""
        return self._client.offline if self._phase is Phase.RELAYING else self._phase.value
