"""Strangers who mean harm, against a real coordinator and real nodes.

Each attacks for some seconds, as told in the test's name. The run must go on meanwhile and
afterwards, no process may end, and the coordinator's memory and journal stay small. How fast the
run goes meanwhile is a matter of the machine, and is not judged here.
"""

import asyncio
import contextlib
import resource
import secrets
import socket
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import JOURNAL_NAME
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.commands.status import ask, render
from lockstep.console import output
from lockstep.run_file import write_run_file
from node.links.mesh import Mesh
from node.links.network import PeerAddress, ReadOnlyPeer
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.system.clock import own_clock_ms
from node.transports.grpc_transport import GrpcTransport
from protocol import wire_pb2 as wire
from protocol.channel import CLIENT_OPTIONS
from protocol.codec.announcement import announce, offered_payload
from protocol.errors import LockstepError
from protocol.handshake import public_bytes, sign_hello
from protocol.ids import PeerId, RunId, peer_id, sha256
from protocol.limits import MEMBERS_MAX, PROTOCOL_VERSION
from protocol.wire_pb2_grpc import CoordinatorStub
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

pytestmark = pytest.mark.slow

ATTACK_S = 5.0

MEMORY_BYTES = 64_000_000
"""Growth of the coordinator's memory under one attack, at most."""

JOURNAL_BYTES_PER_MINUTE = 1_000_000
"""Growth of the journal in a minute with an attack, at most, beyond the honest commits."""

HONEST_BYTES_PER_COMMIT = 2_000
"""Events of one commit of this run, at most."""

USUAL_DESCRIPTORS = 1024
"""Limit of open files that a process has on most machines before it asks for more."""

VERSION_2 = b"LSP1\x02\x00\x91\x02"
"""A whole payload of another protocol version: once it ended every node, for ever."""


class Stranger:
    """A key made on the spot, with a session of its own."""

    def __init__(self, address: str, run_id: RunId) -> None:
        self.address, self.run_id = address, run_id
        self.key = Ed25519PrivateKey.generate()
        self.peer: PeerId = peer_id(public_bytes(self.key))
        # a connection of its own: those of one process are shared else
        options = (*CLIENT_OPTIONS, ("grpc.use_local_subchannel_pool", 1))
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.stub = CoordinatorStub(self.channel)  # type: ignore[no-untyped-call]
        self.call: grpc.aio.StreamStreamCall[wire.NodeMessage, wire.CoordinatorMessage]
        self._turn = asyncio.Lock()

    async def connect(self) -> bytes:
        """Open a session; its nonce."""
        self.call = self.stub.Session(wait_for_ready=True)
        message = await self.call.read()
        return bytes(message.challenge.nonce)

    async def hello(self, **texts: object) -> None:
        nonce = await self.connect()
        fields = {
            "protocol_version": PROTOCOL_VERSION,
            "run_id": self.run_id,
            "public_key": public_bytes(self.key),
            "signature": sign_hello(self.key, self.run_id, nonce),
            "addresses": ["192.0.2.1:1"],
            "name": "stranger",
        }
        await self.say(hello=wire.Hello(**(fields | texts)))  # type: ignore[arg-type]

    async def say(self, **kind: object) -> None:
        """Send a message; gRPC takes the next one when this one is on its way."""
        async with self._turn:
            await self.call.write(wire.NodeMessage(**kind))  # type: ignore[arg-type]

    async def hear(self, kind: str) -> wire.CoordinatorMessage:
        while (message := await self.call.read()) is not grpc.aio.EOF:
            if message.WhichOneof("kind") == kind:
                return message
        raise AssertionError(f"expected {kind}, the session ended")

    async def join_ready(self) -> wire.Welcome:
        """Become a ready member, as anybody may: the recorded digest is public."""
        await self.hello()
        welcome = (await self.hear("welcome")).welcome
        while True:
            commits = await self.stub.GetCommits(
                wire.GetCommitsRequest(after_round=welcome.head_round - 3)
            )
            reported = [row for row in commits.commits if row.digest_reports]
            if reported:
                break
            await asyncio.sleep(0.2)
        newest = commits.head_round
        await self.say(
            ready=wire.Ready(
                round=newest, state_digest=reported[-1].state_digest, has_momentum=True
            )
        )
        return welcome


@dataclass
class Run:
    """A cluster under attack."""

    cluster: Cluster
    journal: Path

    @property
    def address(self) -> str:
        return self.cluster.address

    @property
    def run_id(self) -> RunId:
        return RunId(str(self.cluster.coordinator.status["run_id"]))

    def memory(self) -> int:
        """Bytes of the coordinator that are in memory."""
        pages = Path(f"/proc/{self.cluster.coordinator.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def journal_bytes(self) -> int:
        """Bytes of all events. The file beside the journal, through which they go, has a size of
        its own that does not grow.
        """
        with contextlib.closing(sqlite3.connect(f"file:{self.journal}?mode=ro", uri=True)) as rows:
            query = "SELECT total(length(body) + length(kind) + 16) FROM events"
            return int(rows.execute(query).fetchone()[0])

    def goes_on(self, rounds: int = 3) -> None:
        """Wait for further commits of all honest nodes."""
        before = committed(self.cluster)
        watch_until(
            self.cluster,
            lambda: committed(self.cluster) >= before + rounds,
            f"{rounds} commits after {before}",
        )

    def all_live(self) -> None:
        for child in self.cluster.children:
            assert child.exit_status is None, child.last_words()
            assert child.restarts == 0, child.last_words()

    def log(self) -> str:
        return self.cluster.coordinator.log.read_text(encoding="utf-8", errors="replace")


@contextlib.contextmanager
def descriptors(count: int) -> Iterator[None]:
    """Limits the open files of this process, and of those that it starts, to the end of the
    block; they may raise the limit again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"needs {count} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """A coordinator and two honest nodes with some commits behind them."""
    directory = tmp_path_factory.mktemp("strangers")
    run_file = directory / "run.toml"
    spec = tiny_spec(
        steps=100_000,
        quorum=2,
        copies_min=1,
        lease_ms=6_000,
        compute_ms=1_000,
        publish_ms=1_000,
        exchange_ms=1_500,
    )
    write_run_file(run_file, spec, force=True)
    data = tiny_corpus(directory / "data")
    with (
        descriptors(USUAL_DESCRIPTORS),
        Cluster(ClusterSettings(directory, run_file, data, nodes=2)) as cluster,
    ):
        cluster.start()
        watch_until(cluster, lambda: committed(cluster) >= 3, "three commits")
        yield Run(cluster, directory / "coordinator" / JOURNAL_NAME)


def attack(run: Run, work: Callable[[], Awaitable[object]]) -> None:
    """Let strangers work for `ATTACK_S`. The run goes on meanwhile and afterwards, everybody lives,
    and the coordinator has grown by little.
    """
    memory, journal, steps = run.memory(), run.journal_bytes(), committed(run.cluster)
    began_s = time.monotonic()

    async def limited() -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(ATTACK_S):
                await work()

    asyncio.run(limited())
    run.goes_on()
    run.all_live()
    honest = HONEST_BYTES_PER_COMMIT * (committed(run.cluster) - steps + 5)
    minutes = max(1.0, (time.monotonic() - began_s) / 60)
    assert run.journal_bytes() - journal < honest + JOURNAL_BYTES_PER_MINUTE * minutes
    assert run.memory() - memory < MEMORY_BYTES


async def forever(work: Callable[[], Awaitable[object]]) -> None:
    """Repeat one piece of work, whatever the coordinator says to it."""
    while True:
        with contextlib.suppress(
            grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError
        ):
            await work()
        await asyncio.sleep(0)


def test_receipts_without_end_fill_no_journal(run: Run) -> None:  # F9
    async def flood() -> None:
        stranger = Stranger(run.address, run.run_id)
        await stranger.hello()
        digests = [secrets.token_bytes(32) for _ in range(MEMBERS_MAX)]

        async def lie() -> None:
            await stranger.say(holding=wire.Holding(round=10**9, digests=digests))
            await stranger.say(applied=wire.Applied(round=0, state_digest=1))

        await forever(lie)

    attack(run, flood)


def test_keys_that_join_without_end_fill_no_journal(run: Run) -> None:  # F7, F9
    async def flood() -> None:
        async def join() -> None:
            stranger = Stranger(run.address, run.run_id)
            try:
                await stranger.hello(addresses=[f"{'a' * 240}:{number}" for number in range(8)])
                await stranger.say(leave=wire.Leave(reason="x" * 256))
                await stranger.call.read()
            finally:
                await stranger.channel.close()

        await asyncio.gather(*(forever(join) for _ in range(8)))

    attack(run, flood)


def test_silent_connections_do_not_lock_the_door(run: Run) -> None:  # F10
    host, _, port = run.address.rpartition(":")

    async def crowd() -> None:
        with contextlib.ExitStack() as opened:
            for number in range(1200):
                silent = opened.enter_context(socket.create_connection((host, int(port)), 10))
                if number % 2:
                    silent.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0")
            honest = Stranger(run.address, run.run_id)
            nonce = await asyncio.wait_for(honest.connect(), 60)
            assert len(nonce) == 32
            await honest.channel.close()

    with descriptors(4096):
        asyncio.run(crowd())
    attack(run, lambda: asyncio.sleep(0))


def test_calls_without_end_cost_the_coordinator_little(run: Run) -> None:  # F15
    async def flood() -> None:
        stranger = Stranger(run.address, run.run_id)
        calls = (
            lambda: stranger.stub.GetStatus(wire.GetStatusRequest(), timeout=20),
            lambda: stranger.stub.GetCommits(wire.GetCommitsRequest(after_round=-1), timeout=20),
            lambda: stranger.stub.GetMembers(wire.GetMembersRequest(), timeout=20),
            lambda: stranger.stub.Session(wait_for_ready=True).read(),
        )
        await asyncio.gather(*(forever(call) for call in calls for _ in range(16)))

    attack(run, flood)


def test_a_key_that_joins_again_and_again_and_never_reads_takes_no_memory(run: Run) -> None:  # F16
    async def flood() -> None:
        stranger = Stranger(run.address, run.run_id)
        kept = []

        async def join() -> None:
            await stranger.hello()
            kept.append(stranger.call)

        await forever(join)

    attack(run, flood)


def test_names_and_addresses_command_no_terminal_and_forge_no_line(
    run: Run, capsys: pytest.CaptureFixture[str]
) -> None:  # F20, F23
    forged = "127.0.0.1:1\n2026-01-01 00:00:00,000 ERROR lockstep.coordinator journal is lost"

    async def join() -> list[str]:
        refusals = []
        for texts in ({"name": "\x1b]0;owned\x07"}, {"addresses": [forged], "relay": True}):
            stranger = Stranger(run.address, run.run_id)
            await stranger.hello(**texts)
            refusals.append((await stranger.hear("refused")).refused.reason)
            await stranger.channel.close()
        marked = Stranger(run.address, run.run_id)
        await marked.hello(name="[/x]")
        await marked.hear("welcome")
        document = await asyncio.to_thread(ask, run.address)
        while "[/x]" not in [member["name"] for member in document["members"]]:
            await asyncio.sleep(0.3)  # a status may be a second old
            document = await asyncio.to_thread(ask, run.address)
        for part in render(document):
            output.print(part)
        await marked.say(leave=wire.Leave())
        return refusals

    refusals = asyncio.run(join())
    assert all("without control characters" in refusal for refusal in refusals)
    assert "[/x]" in capsys.readouterr().out
    assert "ERROR lockstep.coordinator journal is lost" not in run.log()
    attack(run, lambda: asyncio.sleep(0))


class Attacker(ReadOnlyPeer):
    """A member with links to the honest nodes. It serves what it was told to, and nothing else."""

    def __init__(self, stranger: Stranger) -> None:
        self.stranger, self.blobs = stranger, dict[bytes, bytes]()
        transport = GrpcTransport("127.0.0.1:0")
        identity = Identity(stranger.key, stranger.run_id, secrets.randbits(64))
        self.mesh = Mesh(identity, [transport], Uplink(None, own_clock_ms), own_clock_ms)

    async def read(self, digest: bytes, offset: int, count: int = 1) -> tuple[int, bytes] | None:
        if (blob := self.blobs.get(digest)) is not None:
            return len(blob), blob[offset : offset + count]
        await asyncio.sleep(3600)
        return None

    async def offer(self, peer: PeerAddress, *offers: wire.OfferedPayload) -> None:
        message = wire.Offers(run_id=self.stranger.run_id, sender=self.stranger.peer, offers=offers)
        with contextlib.suppress(LockstepError):
            await self.mesh.offer(peer, message)


@contextlib.asynccontextmanager
async def linked(run: Run, *, ready: bool) -> AsyncIterator[tuple[Attacker, list[PeerAddress]]]:
    """A member that is linked to all honest nodes, and these."""
    stranger = Stranger(run.address, run.run_id)
    attacker = Attacker(stranger)
    addresses = await attacker.mesh.start(attacker)
    stranger_address = {"addresses": list(addresses)}
    if ready:
        await stranger.join_ready()
        told = await stranger.stub.GetMembers(wire.GetMembersRequest())
    else:
        await stranger.hello(**stranger_address)
        told = (await stranger.hear("welcome")).welcome.members
    honest = [
        PeerAddress(PeerId(member.peer_id), tuple(member.addresses))
        for member in told.members
        if member.peer_id != stranger.peer and "127.0.0.1" in member.addresses[0]
    ]
    attacker.mesh.keep(honest)
    try:
        yield attacker, honest
    finally:
        with contextlib.suppress(grpc.aio.AioRpcError, asyncio.InvalidStateError):
            await stranger.say(leave=wire.Leave())
        await attacker.mesh.stop()
        await stranger.channel.close()


async def beat(stranger: Stranger) -> None:
    while True:
        await stranger.say(heartbeat=wire.Heartbeat(sent_ms=1))
        await asyncio.sleep(0.5)


def test_offers_that_no_author_has_signed_take_no_place(run: Run) -> None:  # F6
    async def flood() -> None:
        async with linked(run, ready=False) as (attacker, honest):
            beating = asyncio.create_task(beat(attacker.stranger))
            try:
                while True:
                    head = await attacker.stranger.stub.GetCommits(
                        wire.GetCommitsRequest(after_round=10**9)
                    )
                    for round in range(head.head_round + 1, head.head_round + 5):
                        await asyncio.gather(*(fill(attacker, peer, round) for peer in honest))
            finally:
                beating.cancel()

    async def fill(attacker: Attacker, peer: PeerAddress, round: int) -> None:
        unsigned = [
            wire.OfferedPayload(round=round, digest=secrets.token_bytes(32), payload_bytes=400)
            for _ in range(8)
        ]
        own = [
            offered_payload(
                announce(
                    attacker.stranger.key,
                    attacker.stranger.run_id,
                    round,
                    sha256(secrets.token_bytes(8)),
                    size=400,
                    samples=1,
                )
            )
            for _ in range(8)
        ]
        await attacker.offer(peer, *own, *unsigned)

    attack(run, flood)


def test_a_payload_of_another_protocol_version_stops_no_node(run: Run) -> None:  # F1
    async def poison() -> None:
        async with linked(run, ready=True) as (attacker, honest):
            stranger, digest = attacker.stranger, sha256(VERSION_2)
            attacker.blobs[digest] = VERSION_2
            beating = asyncio.create_task(beat(stranger))
            try:
                while True:
                    round = (await stranger.hear("opened")).opened.round
                    await stranger.say(
                        announced=wire.Announced(
                            round=round,
                            digest=digest,
                            payload_bytes=len(VERSION_2),
                            samples=1,
                            compute_ms=10,
                            loss=2.0,
                        )
                    )
                    said = announce(
                        stranger.key,
                        stranger.run_id,
                        round,
                        digest,
                        size=len(VERSION_2),
                        samples=1,
                    )
                    for peer in honest:
                        await attacker.offer(peer, offered_payload(said))
            finally:
                beating.cancel()

    attack(run, poison)
