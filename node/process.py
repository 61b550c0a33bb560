"""A node from start to stop: run file, data, model, gossip, session, trainer. The front door adds
signals and the admin port."""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from node.control import first_contact
from node.control.addresses import address_towards, announced, keep_session
from node.control.client import CoordinatorClient, RunInfo, own_clock_ms
from node.control.decisions import DecisionLog
from node.data.corpus import Corpus
from node.data.prepare import prepare_builtin
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.model.check import check_model
from node.model.checkpoint import save_checkpoint
from node.model.training import require_fits
from node.replica.position import Position
from node.replica.replica import Replica
from node.replica.snapshot import Snapshots
from node.round.catch_up import CatchUp
from node.round.context import RoundContext
from node.settings import NodeSettings
from node.status import NodeStatus, registry
from node.system.device import choose_device, describe, use_threads
from node.system.malloc import keep_freed_memory
from node.trainer import Trainer
from node.transports.base import Transport
from node.transports.factory import make_transports, parse_kinds
from protocol import wire_pb2 as wire
from protocol.addresses import parse_address
from protocol.errors import DataError, LocalProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, peer_id
from protocol.traffic import Overhead, unknown_overhead

log = logging.getLogger("lockstep.node")

_Answer = TypeVar("_Answer")

BUILTIN_CORPUS = "python-stdlib"

LEAVE_SECONDS = 2
"""How long a leaving node waits for its goodbye to reach the coordinator."""

TRAFFIC_SECONDS = 1
"""How often the traffic counters are copied to the status."""


class NodeProcess:
    """One node of one run. `key` is its identity; `overhead` tells what nobody owns of its
    traffic."""

    def __init__(
        self,
        settings: NodeSettings,
        key: Ed25519PrivateKey,
        software: str,
        overhead: Overhead = unknown_overhead,
    ) -> None:
        self._settings, self._key, self._software = settings, key, software
        self._overhead = overhead
        self._peer: PeerId = peer_id(public_bytes(key))
        self._client = CoordinatorClient(parse_address(settings.coordinator), key)
        self._progress = NodeStatus(self._peer, settings.name or self._peer[:8])
        self.registry: CollectorRegistry = registry(self._progress)
        self._trainer: Trainer | None = None
        self._swarm: Swarm | None = None
        self._mesh: Mesh | None = None
        self._transports: list[Transport] = []
        self.address = settings.listen
        self._background: list[asyncio.Task[None]] = []
        self._hello = wire.Hello()

    async def start(self) -> None:
        """Everything up to the point where rounds can come.

        Raises `UnavailableError` when no coordinator has ever answered at the address,
        `VersionError`, `SettingsError`, `DataError`, `StorageError`, `AddressInUseError`."""
        settings, progress = self._settings, self._progress
        progress.phase = f"asks {self._client.address} for the run"
        info = await self._reach(self._client.fetch_run)
        await asyncio.to_thread(first_contact.remember, settings.directory, self._client.address)
        keep_freed_memory()
        use_threads(settings.threads)
        device = choose_device(settings.device)
        progress.phase = "opens its data"
        corpus = await asyncio.to_thread(open_corpus, settings, info)
        progress.phase = "builds the model"
        await asyncio.to_thread(try_model, info, device)
        replica = await asyncio.to_thread(
            Replica, info.spec, info.run_id, device, settings.micro_batch
        )
        require_fits(
            replica.trainee.model, corpus.manifest.vocabulary_size, info.spec.data.sequence_length
        )
        progress.parameters = replica.layout.parameters
        ledger = DecisionLog(info.run_id, info.coordinator_key, self._client.fetch_commits)
        position = await asyncio.to_thread(replica.load, self._state_path)
        if position:
            ledger.resume(position.next_round, position.head, position.head_round)
            progress.round = position.head_round
        progress.state_digest = replica.digest
        snapshots = await asyncio.to_thread(Snapshots, settings.directory / "snapshots")
        relays = (await self._reach(lambda _: self._client.fetch_members())).relays
        self._swarm = self._make_swarm(info, replica, snapshots, relays)
        addresses = await self._swarm.start()
        self.address = addresses[0]
        self._hello = wire.Hello(
            addresses=addresses,
            software=self._software,
            hardware=describe(device),
            name=progress.name,
        )
        self._trainer = Trainer(
            RoundContext(
                info,
                self._peer,
                replica,
                corpus,
                self._client,
                ledger,
                self._swarm,
                progress,
                self._saver(replica),
                settings.save_every,
                CatchUp(
                    info,
                    replica,
                    snapshots,
                    self._swarm,
                    self._client.fetch_commits,
                    progress=progress,
                ),
                position,
            )
        )
        self._info, self._replica, self._corpus = info, replica, corpus

    async def run(self) -> str:
        """Train until the run is finished or the node is told to leave; why it ended, in words.

        Raises `RefusedError` and `DivergedError`; whatever the network does is waited out."""
        if self._trainer is None or self._swarm is None:
            raise LocalProtocolError("expected start() before run()")
        session = asyncio.create_task(
            keep_session(self._client, self._info, self._hello, self._trainer, self._transports)
        )
        training = asyncio.create_task(self._trainer.run())
        traffic = asyncio.create_task(self._watch_traffic())
        failing = asyncio.create_task(self._swarm.failed())
        self._background += [session, traffic, failing]
        try:
            await asyncio.wait(
                {training, session, traffic, failing}, return_when=asyncio.FIRST_COMPLETED
            )
            for task in (session, traffic, failing):
                if task.done():
                    task.result()
            reason = await training
            self._progress.phase = "saves its state"
            await self._finish(reason)
        finally:
            training.cancel()
            session.cancel()
            await asyncio.gather(training, session, return_exceptions=True)
        self._progress.phase = reason
        return reason

    def leave(self) -> None:
        """Finish the round, then end `run`."""
        if self._trainer:
            self._trainer.leave()

    async def stop(self) -> None:
        """Close what `start` and `run` have opened. Safe to call twice."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        self._background.clear()
        if self._swarm:
            await self._swarm.stop()
            self._swarm = None
        await self._client.close()

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        self._count_traffic()
        links = self._mesh.document() if self._mesh else {}
        known = {"coordinator": self._client.address, "session": self._client.state, "links": links}
        return known | self._progress.document()

    def unready(self) -> str:
        """Why this node takes no part in rounds; empty when it does."""
        if self._trainer is None:
            return self._progress.phase
        return "" if self._client.connected else self._client.state

    # ---- parts

    async def _reach(self, call: Callable[[float], Awaitable[_Answer]]) -> _Answer:
        """An answer of the coordinator: for ever once it has answered, else within
        `first_contact.FIRST_CONTACT_SECONDS`."""

        def say(why: str) -> None:
            self._progress.phase = why

        known = first_contact.is_known(self._settings.directory, self._client.address)
        return await first_contact.reach(
            call, say, None if known else first_contact.FIRST_CONTACT_SECONDS
        )

    @property
    def _state_path(self) -> Path:
        return self._settings.directory / "state.safetensors"

    def _make_swarm(
        self,
        info: RunInfo,
        replica: Replica,
        snapshots: Snapshots,
        relays: Mapping[PeerId, tuple[str, ...]],
    ) -> Swarm:
        retention = info.spec.retention
        listen = self._settings.listen
        if listen == "auto":
            listen = address_towards(self._client.address)
        kinds = parse_kinds(self._settings.links)
        ways = [
            address
            for addresses in relays.values()
            for address in addresses
            if address.startswith("/")
        ]
        advertise = announced(listen, self._settings.advertise, self._client.address)
        transports = self._transports = make_transports(kinds, self._key, listen, advertise, ways)
        uplink = Uplink(self._settings.upload_limit or None, own_clock_ms)
        self._mesh = Mesh(
            Identity(self._key, info.run_id, secrets.randbits(64)), transports, uplink, own_clock_ms
        )
        payloads = PayloadLog(
            self._settings.directory / "payloads",
            retention.log_rounds,
            retention.log_bytes_max,
            snapshots.held_round,
        )
        return Swarm(
            self._peer,
            info.run_id,
            SwarmLimits(replica.payload_bytes_max, info.spec.membership.neighbours),
            log=payloads,
            link=self._mesh,
            report_holding=self._report_holding,
            clock_ms=own_clock_ms,
            snapshots=snapshots,
        )

    def _report_holding(self, round: int, digests: list[Digest]) -> None:
        if self._trainer:
            self._trainer.report_holding(round, digests)

    def _saver(self, replica: Replica) -> Any:
        def save(position: Position) -> None:
            replica.save(self._state_path, position)

        return save

    async def _finish(self, reason: str) -> None:
        """Keep state and checkpoint, then say goodbye."""
        assert self._trainer is not None
        position = self._trainer.position
        await asyncio.to_thread(self._replica.save, self._state_path, position)
        about = {
            "run_id": self._info.run_id,
            "name": self._info.spec.name,
            "round": position.head_round,
            "state_digest": f"{self._replica.digest:016x}",
        }
        model, tokenizer = self._replica.trainee.model, self._corpus.tokenizer
        await asyncio.to_thread(
            save_checkpoint,
            self._settings.directory / "checkpoint",
            model,
            self._replica.committed,
            tokenizer,
            about,
        )
        self._client.send(wire.NodeMessage(leave=wire.Leave(reason=reason)))
        await self._client.flushed(LEAVE_SECONDS)

    async def _watch_traffic(self) -> None:
        while self._swarm:
            self._count_traffic()
            await asyncio.sleep(TRAFFIC_SECONDS)

    def _count_traffic(self) -> None:
        if self._swarm and self._mesh:
            statistics = self._swarm.statistics.complete(self._client.traffic, self._overhead)
            self._mesh.uplink.carried(statistics.up_bytes)
            self._progress.traffic = statistics.document()


def open_corpus(settings: NodeSettings, info: RunInfo) -> Corpus:
    """The node's data, checked against the run file. Prepares the built-in corpus on first use."""
    spec, directory = info.spec, settings.data
    if directory is None:
        if spec.data.corpus != BUILTIN_CORPUS:
            raise DataError(
                f"the run trains on {spec.data.corpus!r}, which is not built in: prepare it with `lockstep data "
                "prepare` and name its directory with --data"
            )
        directory = (settings.corpora or settings.directory) / BUILTIN_CORPUS
        prepare_builtin(directory)
    corpus = Corpus.open(directory)
    expected, found = spec.data.manifest_sha256, corpus.manifest.digest.hex()
    if expected and found != expected:
        raise DataError(f"{directory}: expected the data with manifest {expected}, got {found}")
    corpus.samples(spec.data.sequence_length)
    return corpus


def try_model(info: RunInfo, device: torch.device) -> None:
    """Try the run's model on one sample; `SettingsError` when it cannot be trained here."""
    for note in check_model(info.spec, device).notes:
        log.warning("model configuration", extra={"note": note})
