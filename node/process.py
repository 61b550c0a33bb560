"""A node from start to stop: run file, data, model, gossip, session, trainer. The front door adds
signals and the admin port.

    start    run file | data | model and saved state | members | swarm | trainer
    run      session and trainer side by side, until the run is finished or the node leaves
    stop     close everything

This is the only module that knows all rooms of a node.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from node.control import first_contact
from node.control.client import CoordinatorClient
from node.control.decisions import DecisionLog
from node.control.heads import HeadKeeper
from node.control.session import keep_session
from node.data.corpus import Corpus
from node.gossip.payload_check import PayloadCheck
from node.gossip.swarm import Swarm
from node.links.mesh import Mesh
from node.links.protocol import Identity
from node.links.quality.reports import LinkReports
from node.links.uplink import Uplink
from node.own_data import reach_corpus
from node.own_network import own_swarm, own_transports
from node.own_replica import build_replica
from node.owner_view import owner_view
from node.ranks.crew import Crew
from node.replica.checkpoint_state import read_state
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from node.round.catching_up.neighbour_start import catch_up_for
from node.round.context import RoundContext
from node.round.state_requests.requests import PublisherAndEvaluator, publisher_and_evaluator
from node.round.witness import WitnessReports
from node.settings import NodeSettings
from node.status import NodeStatus, registry
from node.sums.part_check import part_header_of
from node.sums.summer import Summer
from node.system.absence import watch_absence
from node.system.clock import own_clock_ms
from node.system.device import (
    choose_devices,
    describe,
    device_errors,
    facts,
    limit_memory,
    use_threads,
)
from node.system.downlink import Downlink
from node.system.duty_cycle import DutyKeeper
from node.system.hardware import unused
from node.traffic import Statistics
from node.trainer import Trainer
from node.transports.base import Transport
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.errors import DeviceError, EquivocationError, LocalProtocolError, SettingsError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, peer_id
from protocol.limits import CONNECTIONS_MAX
from protocol.run_info import RunInfo
from protocol.traffic import Overhead, unknown_overhead

log = logging.getLogger("lockstep.node")

_Answer = TypeVar("_Answer")

GOODBYE_S = 2
"""Longest wait of a leaving node for its goodbye to reach the coordinator."""

TRAFFIC_S = 1
"""Pause between two looks at the traffic: for the status, and to charge the upload limit."""


@dataclass(frozen=True, slots=True)
class Started:
    """The parts of a node that `start` has made."""

    info: RunInfo
    replica: Replica
    corpus: Corpus
    swarm: Swarm
    mesh: Mesh
    transports: list[Transport]
    trainer: Trainer
    hello: wire.Hello
    requests: PublisherAndEvaluator
    heads: HeadKeeper


class NodeProcess:
    """One node of one run. `key` is its identity; `overhead` tells the traffic that no part of the
    node counts.
    """

    def __init__(
        self,
        settings: NodeSettings,
        key: Ed25519PrivateKey,
        software: str,
        overhead: Overhead = unknown_overhead,
        crew: Crew | None = None,
    ) -> None:
        self._settings, self._key, self._software = settings, key, software
        self._crew = crew
        self._overhead, self._duty = overhead, DutyKeeper(settings.duty_cycle)
        self._uplink = Uplink(settings.upload_limit or None, own_clock_ms)
        self._downlink = Downlink(settings.download_limit, own_clock_ms)
        link = parse_link(settings.coordinator).with_token(settings.token)
        self._client = CoordinatorClient(link, key)
        self._status = NodeStatus(own := self._peer, settings.name or own[:8])
        self._started: Started | None = None
        self._swarm: Swarm | None = None  # from the moment at which it listens
        self._background: list[asyncio.Task[None]] = []
        self.address = settings.listen
        self.registry: CollectorRegistry = registry(self._status)

    @property
    def _peer(self) -> PeerId:
        return peer_id(public_bytes(self._key))

    @property
    def started(self) -> Started:
        """The parts that `start` has made; `LocalProtocolError` before that."""
        if self._started is None:
            raise LocalProtocolError("expected start() first, it was not called or failed")
        return self._started

    async def start(self, connections_max: int = CONNECTIONS_MAX) -> None:
        """Everything up to the point where rounds can come; peers may open `connections_max`
        connections.

        Raises `UnavailableError` when no coordinator has ever answered at the address,
        `VersionError`, `SettingsError`, `DataError`, `ShortageError`, `StorageError`,
        `AddressInUseError`, `DeviceError`, and `EquivocationError` when this node has the proof
        that the coordinator signs two histories.
        """
        with device_errors():
            await self._start(connections_max)

    async def _start(self, connections_max: int) -> None:
        settings, status = self._settings, self._status
        status.says(f"asks {self._client.address} for the run")
        info = await self._reach(self._client.calls.fetch_run)
        await asyncio.to_thread(first_contact.remember, settings.directory, self._client.address)
        fetch = self._client.calls.fetch_commits
        heads = await asyncio.to_thread(HeadKeeper, info, settings.directory, fetch)
        use_threads(settings.threads * (self._crew.here if self._crew else 1))
        device, *_ = choose_devices(settings.device)
        limit_memory(device, settings.gpu_memory)
        if settings.device in ("auto", "all") and (reason := unused(facts())):
            log.warning("trains on the CPU", extra={"reason": reason})
        status.says("opens its data")
        corpus = await reach_corpus(settings, info, self._status.says, self._downlink)
        status.reads(corpus.document)
        status.says("builds the model")
        try:
            parts = settings, info, device, corpus, self._peer, self._crew
            replica = await asyncio.to_thread(build_replica, *parts)
        except SettingsError as error:
            await self._client.decline(info.run_id, str(error))
            raise
        status.has_built(replica.layout.parameters)
        position = await asyncio.to_thread(replica.load, self._state_path)
        status.stands_at(position.head_round if position else -1, replica.digest)
        await self._reach(lambda _: self._client.calls.fetch_members())
        made = info, replica, corpus, position, heads
        self._started = await self._assemble(*made, connections_max=connections_max)
        self._started.hello.hardware = self._crew.hardware if self._crew else describe(device)

    async def _assemble(
        self,
        info: RunInfo,
        replica: Replica,
        corpus: Corpus,
        position: Position | None,
        heads: HeadKeeper,
        *,
        connections_max: int,
    ) -> Started:
        """Put a node together around its replica, and listen."""
        settings, client, fetch = self._settings, self._client, self._client.calls.fetch_commits
        decisions = DecisionLog(info.run_id, info.coordinator_key, fetch, heads=heads.heads)
        if position:
            decisions.resume(position)
        snapshots = await self._open_snapshots(info)
        transports = own_transports(settings, self._key, client, connections_max)
        identity = Identity(self._key, info.run_id, secrets.randbits(64), heads.heads)
        mesh = Mesh(identity, transports, self._uplink, own_clock_ms, downlink=self._downlink)
        check = PayloadCheck(info.run_id, replica.header_of, part_header_of(replica.shape))
        witness = WitnessReports(
            self._peer,
            info.spec.rounds.copies_min,
            lambda: client.members.member_count,
            client.send,
            check.author_of,
        )
        parts_of_swarm = settings, self._key, info, mesh, replica, client
        swarm = self._swarm = own_swarm(
            *parts_of_swarm, snapshots=snapshots, check=check, report_holding=witness.add
        )
        addresses = await swarm.start()
        self.address = addresses[0]
        parts = settings, info, replica, corpus, client
        requests = publisher_and_evaluator(*parts, status=self._status, duty=self._duty)
        context = RoundContext(
            info=info,
            own=self._peer,
            replica=replica,
            corpus=corpus,
            client=client,
            decisions=decisions,
            swarm=swarm,
            status=self._status,
            witness=witness,
            summer=Summer(info, self._key, replica.shape, swarm.parts, client.send),
            catch_up=catch_up_for(info, replica, snapshots, swarm, fetch, status=self._status),
            save=lambda position: replica.save(self._state_path, position),
            save_every=settings.save_every,
            state_requests=requests,
            duty=self._duty,
            heads=heads,
        )
        hello = wire.Hello(addresses=addresses, software=self._software, name=self._status.name)
        trainer = Trainer(context)
        work = trainer, hello, requests
        return Started(info, replica, corpus, swarm, mesh, transports, *work, heads)

    async def _open_snapshots(self, info: RunInfo) -> Snapshots:
        """The snapshots, with the one from which its owner lets the run go on, if there is one."""
        settings = self._settings
        snapshots = await asyncio.to_thread(Snapshots, settings.directory / "snapshots")
        if settings.restart_from:
            state = await asyncio.to_thread(read_state, settings.restart_from, info)
            await asyncio.to_thread(snapshots.keep, state.round, state.parameters)
        return snapshots

    async def run(self) -> str:
        """Train until the run is finished or the node is told to leave; returns the reason in
        words.

        Raises `RefusedError`, `DivergedError`, and `DeviceError` and `EquivocationError` after a
        goodbye, so that nobody waits for this node; it waits for anything else of the network.
        """
        parts = self.started
        line = self._client, parts.info, parts.hello, parts.trainer.inbox, parts.transports
        session = asyncio.create_task(keep_session(*line))
        training = asyncio.create_task(parts.trainer.run())
        charging = asyncio.create_task(self._charge_traffic(parts.mesh))
        failing = asyncio.create_task(parts.swarm.failed())
        silence_s = self._client.silence_s(parts.info.spec.membership.heartbeat_ms)
        watching = asyncio.create_task(watch_absence(self._was_away, silence_s))
        weighing = asyncio.create_task(parts.heads.watch(parts.hello, self._client.send))
        self._background += [session, charging, failing, watching, weighing]
        ending = session, charging, failing, weighing
        try:
            await asyncio.wait({training, *ending}, return_when=asyncio.FIRST_COMPLETED)
            for task in ending:
                if task.done():
                    task.result()
            with device_errors():
                reason = await parts.heads.explained(training)
                self._status.says("saves its state")
                await self._finish(parts, reason)
        except (DeviceError, EquivocationError) as error:
            await self._say_goodbye(str(error))
            raise
        finally:
            training.cancel()
            session.cancel()
            await asyncio.gather(training, session, return_exceptions=True)
        self._status.says(reason)
        return reason

    def _was_away(self, seconds: float) -> None:
        self._status.notes(f"was away for {seconds:.0f} s: stopped, or asleep with the machine")
        self._client.reopen()

    def leave(self) -> None:
        """Finish the round, then end `run`."""
        if self._started:
            self._started.requests.leave()
            self._started.trainer.leave()

    def limit(self, *, duty_cycle: int, gpu_memory: int, upload: int, download: int) -> None:
        """Keep to these percentages of the time and of a GPU's memory, and these bytes per second
        (0: no limit), from now on; `SettingsError` for a device whose memory has no limit.
        """
        if gpu_memory != self._settings.gpu_memory:
            limit_memory(choose_devices(self._settings.device)[0], gpu_memory)
            if self._crew:
                self._crew.limit(gpu_memory)
            self._settings = replace(self._settings, gpu_memory=gpu_memory)
        self._duty.limit(duty_cycle)
        self._uplink.limit(upload)
        self._downlink.limit(download)

    async def stop(self) -> None:
        """Close everything that `start` and `run` have opened. Safe to call twice."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._started:
            self._started.corpus.close()
            await self._started.requests.publisher.stop()
        if self._swarm:
            await self._swarm.stop()
            self._swarm = None
        if self._crew:
            with suppress(DeviceError):
                await asyncio.to_thread(self._crew.rest)
        await self._client.close()

    # ---- for people

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        links = self._started.mesh.document() if self._started else {}
        known: dict[str, Any] = {"coordinator": self._client.address, "links": links}
        known |= {"session": self._client.words, "notice": self._client.notice}
        known["waiting_for"] = self._swarm.waiting_for if self._swarm else ""
        known["ranks"] = self._crew.document() if self._crew else []
        known["heads"] = self._started.heads.document() if self._started else {}
        document = known | self._status.document() | self._owner_view()
        if traffic := self._traffic():
            document["traffic"] = traffic.document()
        return document

    def _owner_view(self) -> dict[str, Any]:
        parts = self._started
        info, hardware = (parts.info, parts.hello.hardware) if parts else (None, "")
        return owner_view(self._client, self._status, info, hardware)

    def unready(self) -> str:
        """Why this node takes no part in rounds; empty when it does."""
        return self._client.offline if self._started else self._status.phase

    def _traffic(self) -> Statistics | None:
        if self._swarm is None:
            return None
        return self._swarm.statistics.complete(self._client.traffic, self._overhead)

    async def _charge_traffic(self, mesh: Mesh) -> None:
        """Charge bytes that no link counts, as those of the operating system, to the uplink; tell
        what the links are like.
        """
        reports = LinkReports()
        while traffic := self._traffic():
            mesh.uplink.carried(traffic.up_bytes)
            self._status.carried(traffic.document())  # for metrics
            faults = (self._swarm.greedy, self._swarm.breaking) if self._swarm else ()
            told = mesh.links, self._client.sessions_lost, own_clock_ms(), *faults
            if self._client.connected and (report := reports.due(*told)):
                self._client.send(report)
            await asyncio.sleep(TRAFFIC_S)

    # ---- parts

    async def _reach(self, call: Callable[[float], Awaitable[_Answer]]) -> _Answer:
        """An answer of the coordinator; the wait is limited until it has answered once."""
        known = first_contact.is_known(self._settings.directory, self._client.address)
        limit_s = None if known else first_contact.FIRST_CONTACT_S
        return await first_contact.reach(call, self._status.says, limit_s)

    @property
    def _state_path(self) -> Path:
        return self._settings.directory / "state.safetensors"

    async def _finish(self, parts: Started, reason: str) -> None:
        """Save state and checkpoint, then say goodbye."""
        position, replica = parts.trainer.position, parts.replica
        await asyncio.to_thread(replica.save, self._state_path, position)
        checkpoint = self._settings.directory / "checkpoint"
        await asyncio.to_thread(parts.requests.publisher.save, checkpoint, position.head_round)
        self._status.says("completes what it was asked for: a validation loss, a checkpoint")
        await parts.requests.finish()
        await self._say_goodbye(reason)

    async def _say_goodbye(self, reason: str) -> None:
        self._client.send(wire.NodeMessage(leave=wire.Leave(reason=reason)))
        await self._client.flush(GOODBYE_S)
