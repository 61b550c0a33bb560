"""One coordinator from start to stop: journal, machine, gRPC port. `lockstep.service` adds signals
and the admin port.
"""

import asyncio
import logging
import secrets
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from prometheus_client import CollectorRegistry

from border.gate import Gate
from coordinator import metrics, status_document
from coordinator.checkpoints.desk import CheckpointDesk
from coordinator.checkpoints.store import CheckpointStore
from coordinator.desk import OperatorDesk
from coordinator.history import ROUNDS_MAX, History
from coordinator.journal import JOURNAL_NAME, Journal, RecordedCommit
from coordinator.machine.events.acts import Admit, Salted, Vouched
from coordinator.machine.events.effects import CommitRound
from coordinator.machine.machine import RunMachine
from coordinator.machine.rules import demotion
from coordinator.machine.state.standing import SALT_BYTES
from coordinator.public_document import View
from coordinator.restart_request import RestartRequest
from coordinator.sequencer import Outcome, Sequencer
from coordinator.service import silence
from coordinator.service.door import Door
from coordinator.service.heads import HeadDesk
from coordinator.service.server import CoordinatorService
from coordinator.settings import CoordinatorSettings
from coordinator.traffic import CoordinatorTraffic
from protocol.addresses import parse_address, split_address
from protocol.border.join_link import JoinLink, is_loopback
from protocol.channel import SERVER_OPTIONS
from protocol.codec.commits import Commit, open_commit
from protocol.codec.decoding import UNREADABLE
from protocol.errors import StorageError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId
from protocol.limits import CONNECTIONS_MAX
from protocol.runfile import RunSpec, run_id, run_json
from protocol.traffic import Overhead, unknown_overhead

log = logging.getLogger("lockstep.coordinator")

GOODBYE_POLL_S = 0.1
"""Time between two looks at whether all nodes have left, or the run's state is lost."""

CHECKPOINTS_NAME = "checkpoints"
"""Folder of published checkpoints in a coordinator's directory."""

COMMITS_PAGE = 1_000
"""Commits that one query of a restart reads."""


class CoordinatorProcess:
    """The coordinator of one run. `key` signs its commits and, with the run file, names the run;
    `overhead` tells the bytes of its traffic that no message accounts for. `credentials` are those
    of its TLS; None: plain text.
    """

    def __init__(
        self,
        spec: RunSpec,
        settings: CoordinatorSettings,
        key: Ed25519PrivateKey,
        overhead: Overhead = unknown_overhead,
        credentials: grpc.ServerCredentials | None = None,
    ) -> None:
        self._settings = settings
        self._public_key = public_bytes(key)
        self.run_id: RunId = run_id(spec, self._public_key)
        self.address = settings.listen
        self.rounds = RunMachine(spec, self.run_id)
        self.journal = Journal(settings.directory / JOURNAL_NAME)
        self._sequencer = Sequencer(self.rounds, self.journal, key, self._emit)
        self.history = History()
        self._gate = Gate(settings.listen, credentials)
        store = CheckpointStore(self.checkpoints)
        self.service = CoordinatorService(
            self._sequencer,
            self.journal,
            self._public_key,
            self.status,
            Door(settings.directory),
            checkpoints=CheckpointDesk(self._sequencer, store, self.history.contributions),
            heads=HeadDesk(self.journal, self.run_id, self._public_key, settings.directory),
            history=self.history,
            visitors=self._gate,
        )
        self.desk = OperatorDesk(self._sequencer, self.service, lambda: self.link)
        self._traffic = CoordinatorTraffic(overhead)
        self._server: grpc.aio.Server | None = None
        self._loop_task: asyncio.Task[None] | None = None
        self.registry: CollectorRegistry = metrics.registry(
            self.rounds,
            self._traffic,
            self.service,
            self._sequencer.now_ms,
            self.history.times,
        )

    async def start(self, connections_max: int = CONNECTIONS_MAX) -> None:
        """Continue from the journal and listen; others may open `connections_max` connections.
        Raises `AddressInUseError`, `ShortageError`, `StorageError`, `SettingsError`,
        `VersionError`.
        """
        self.journal.bind(self.run_id, run_json(self.rounds.spec))
        await asyncio.to_thread(self._sequencer.recover)
        await asyncio.to_thread(self.service.heads.recover)
        await asyncio.to_thread(self._restore_history)
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self.service.serve(self._server, self._traffic)
        port = self._gate.attach(self._server, connections_max)
        self.address = f"{self._settings.listen.rpartition(':')[0]}:{port}"
        self._loop_task = asyncio.create_task(self._work())
        await self._settle_trust()
        await self.service.checkpoints.start(
            self._settings.checkpoint_room, self._settings.checkpoints_kept
        )
        await self._server.start()
        await self._gate.open()

    @property
    def link(self) -> JoinLink:
        """The link that volunteers are given, where the address is one that they can reach."""
        plain = not self._gate.secure and not is_loopback(self.address)
        _, port = split_address(self.address)
        address = parse_address(self._settings.advertise or self.address, port)
        return JoinLink(address, self.run_id, self._public_key, plain)

    @property
    def page(self) -> str:
        """The address of the public page; empty: there is none."""
        return self._settings.page_url

    def tell_page(self, url: str) -> None:
        """Let nodes know this address of the public page, unless the operator has named one."""
        self._settings = replace(self._settings, page_url=self.page or url)

    async def _work(self) -> None:
        """Handle events, and end the sessions of nodes that send none, until cancelled, or until a
        node shows a commit of this run that is not here.
        """
        membership, now_ms = self.rounds.spec.membership, self._sequencer.now_ms
        sessions = self.service.node_sessions
        watching = asyncio.create_task(silence.end_silent(sessions, membership, now_ms))
        sequencing = asyncio.create_task(self._sequencer.run())
        weighing = asyncio.create_task(self.service.heads.failed())
        try:
            await asyncio.wait({sequencing, weighing}, return_when=asyncio.FIRST_COMPLETED)
            for task in (weighing, sequencing):
                if task.done():
                    task.result()
        finally:
            for task in (watching, sequencing, weighing):
                task.cancel()
            await asyncio.gather(watching, sequencing, weighing, return_exceptions=True)

    async def _settle_trust(self) -> None:
        """Draw the secret of a public run, once, vouch for the operator's nodes, and admit whom the
        settings say.
        """
        members, admit = self.rounds.members, self._settings.admit
        if admit and admit != self.rounds.state.operator.admission.mode:
            await self.desk.order(msgspec.convert({"type": "admit", "mode": admit}, Admit))
        if members.public and not members.standing.salt:
            await self._sequencer.submit(Salted(secrets.token_bytes(SALT_BYTES)))
        for peer in map(PeerId, self._settings.vouch):
            if peer not in members.standing.vouched:
                await self._sequencer.submit(Vouched(peer))

    async def finished(self) -> None:
        """Return when the run has all its steps and its nodes have left, or `goodbye_ms` after they
        were let go. Raises `StorageError` when the journal could not be written, or is an old copy;
        `EquivocationError` when the run has two histories.
        """
        assert self._loop_task is not None, "start() comes first"
        deadline, lost, alarmed = None, "", ""
        restart = RestartRequest(self._settings.restart, self._sequencer)
        while True:
            if (now_lost := self._state_lost()) and not lost:
                log.error("state lost", extra={"run": self.run_id, "reason": now_lost})
            lost = now_lost
            if (alarm := demotion.alarm(self.rounds.state)) and alarm != alarmed:
                log.error("audit alarm", extra={"run": self.run_id, "reason": alarm})
            alarmed = alarm
            await restart.pursue(lost)
            if self._loop_task.done():
                self._loop_task.result()
            if self.rounds.state.end.concluded:
                deadline = deadline or time.monotonic() + self._settings.goodbye_ms / 1000
                late = time.monotonic() >= deadline and not self.service.checkpoints.busy
                if not len(self.rounds.members) or late:
                    return
            await asyncio.sleep(GOODBYE_POLL_S)

    async def stop(self) -> None:
        """Close sessions, the port and the journal. Safe to call twice."""
        self.service.delivery.close()
        await self.service.checkpoints.stop()
        if self._server:
            await self._server.stop(grace=1)
            self._server = None
        await self._gate.close()
        if self._loop_task:
            self._loop_task.cancel()
            await asyncio.gather(self._loop_task, return_exceptions=True)
            self._loop_task = None
        self.journal.close()

    def _state_lost(self) -> str:
        return status_document.state_lost(self.rounds, self._sequencer.now_ms())

    def status(self) -> dict[str, Any]:
        """The document of /status.json."""
        recorded = self.journal.last_commits(status_document.COMMITS_SHOWN)
        commits = [(row, open_commit(row.signed, self._public_key)) for row in recorded]
        document = status_document.status(self.rounds, commits, self._sequencer.now_ms())
        refusals = self.service.run_refusals
        if document["phase"] == "waiting" and refusals:
            document["reason"] += f"; {refusals.words}"
        return {
            "address": self.address,
            "page": self.page,
            "software": self._settings.software,
            **document,
            "refusals": {"nodes": len(refusals)},
            "heads": self.service.heads.document(),
            "connections": self._gate.document(),
            "traffic": document["traffic"] | self._traffic.document(),
            "relays": self.service.relays.document(self.rounds.relays),
            "audit": document["audit"]
            | {
                "auditors": [
                    each | {"connected": each["peer_id"] in self.service.relay_sessions}
                    for each in document["audit"]["auditors"]
                ],
            },
        }

    @property
    def checkpoints(self) -> Path:
        """Folder of the published checkpoints, one folder for each."""
        return self._settings.directory / CHECKPOINTS_NAME

    def view(self) -> View:
        """The run of now, for `coordinator.public_document`, without a way to join."""
        return View(self.rounds, self.history, self._sequencer.now_ms(), "")

    def unready(self) -> str:
        """The reason why nodes cannot be served; empty when they can."""
        if self._loop_task is None:
            return "the coordinator is starting"
        return "the coordinator's loop has stopped" if self._loop_task.done() else ""

    def _restore_history(self) -> None:
        """The commits are this journal's own: their signatures are not checked again."""
        after = -1
        while page := self.journal.commits(after, COMMITS_PAGE):
            commits, losses = [_read(row) for row in page], [row.loss for row in page]
            last = page[-1].round
            decided = self.journal.decided(max(after + 1, last - ROUNDS_MAX), last)
            self.history.restore(zip(commits, losses, strict=True), decided, last)
            after = last
        last = self.rounds.state.decided_round
        decided = self.journal.decided(max(after + 1, last - ROUNDS_MAX), last)
        self.history.restore((), decided, last)
        self.history.name(self.journal.names().items())  # also of those that went

    def _emit(self, outcome: Outcome) -> None:
        self.history.take(outcome.effects, outcome.decided)
        if any(isinstance(effect, CommitRound) for effect in outcome.effects):
            self.history.name((member.peer, member.name) for member in self.rounds.members)
        self.service.delivery.emit(outcome)


def _read(row: RecordedCommit) -> Commit:
    """A commit of this journal, whose signature is not checked; `StorageError` if it is damaged."""
    try:
        return msgspec.msgpack.decode(row.signed.body, type=Commit)
    except UNREADABLE as error:
        raise StorageError(
            f"the journal's commit of round {row.round} is damaged: {error}; put the directory "
            "back from its newest copy"
        ) from None
