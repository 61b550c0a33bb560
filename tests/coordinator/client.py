"""A scripted node over real gRPC: it says exactly what a test tells it to say."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from protocol import wire_pb2 as wire
from protocol.channel import CLIENT_OPTIONS
from protocol.codec.commits import (
    Commit,
    SignedCommit,
    check_link,
    commit_digest,
    genesis_digest,
    open_commit,
)
from protocol.handshake import public_bytes, sign_hello
from protocol.ids import PeerId, RunId, peer_id
from protocol.limits import PROTOCOL_VERSION
from protocol.runfile import RunSpec
from protocol.wire_pb2_grpc import CoordinatorStub
from tests.coordinator.machine.driver import payload_digest, run_spec, state_digest

PATIENCE_S = 20
"""Nothing here takes a second; a test that waits for what never comes ends after this."""

COORDINATOR_KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)


def node_key(number: int) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32)


def quiet_spec(**sections: dict[str, Any]) -> RunSpec:
    """A run in which no instant comes during a test: rounds end when everyone has announced and
    holds copies.
    """
    sections["rounds"] = {"compute_ms": 600_000} | sections.get("rounds", {})
    sections["membership"] = {"lease_ms": 600_000} | sections.get("membership", {})
    return run_spec(**sections)


@asynccontextmanager
async def running(directory: Path, spec: RunSpec) -> AsyncIterator[CoordinatorProcess]:
    """A coordinator from start to stop."""
    process = CoordinatorProcess(
        spec, CoordinatorSettings(directory, "127.0.0.1:0"), COORDINATOR_KEY
    )
    try:
        await process.start()
        yield process
    finally:
        await process.stop()


class ScriptedNode:
    """One key, one channel, at most one session at a time; keeps every message that it was sent."""

    def __init__(self, address: str, run_id: RunId, key: Ed25519PrivateKey) -> None:
        self.run_id, self.key = run_id, key
        self.peer: PeerId = peer_id(public_bytes(key))
        self.heard: list[wire.CoordinatorMessage] = []
        self.channel = grpc.aio.insecure_channel(address, options=CLIENT_OPTIONS)
        self.stub: Any = CoordinatorStub(self.channel)
        self.call: Any = None
        self._turn = asyncio.Lock()
        self.instance = 1
        """The process: one for all scripted nodes of a key, unless a test says otherwise."""

    async def __aenter__(self) -> "ScriptedNode":
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.call is not None:
            self.call.cancel()
        await self.channel.close()

    # ---- the session

    async def connect(self) -> bytes:
        """Open a session; its nonce."""
        self.call = self.stub.Session(wait_for_ready=True)
        message = await self.hear("challenge")
        return bytes(message.challenge.nonce)

    def hello(self, nonce: bytes, **changes: Any) -> wire.NodeMessage:
        """An honest hello, but for `changes`."""
        fields: dict[str, Any] = {
            "protocol_version": PROTOCOL_VERSION,
            "run_id": self.run_id,
            "public_key": public_bytes(self.key),
            "signature": sign_hello(self.key, self.run_id, nonce),
            "addresses": ["127.0.0.1:1"],
            "name": "scripted",
            "instance": self.instance,
        }
        return wire.NodeMessage(hello=wire.Hello(**(fields | changes)))

    async def join(self, *, ready: bool = True) -> wire.Welcome:
        """Hello, welcome and ready with the state of the log's head."""
        await self.say(self.hello(await self.connect()))
        welcome = (await self.hear("welcome")).welcome
        if ready:
            head = welcome.head_round
            await self.say(
                wire.NodeMessage(ready=wire.Ready(round=head, state_digest=state_digest(head)))
            )
        return welcome

    async def say(self, message: wire.NodeMessage) -> None:
        """Send a message; gRPC takes the next one when this one is on its way."""
        async with self._turn:
            await self.call.write(message)

    async def hear(self, *kinds: str) -> wire.CoordinatorMessage:
        """The next message of one of these kinds; others are kept in `heard` and passed over."""
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.heard.append(message)
                if message.WhichOneof("kind") in kinds:
                    return message
        raise AssertionError(f"expected {kinds}, the session ended after {self.heard[-3:]}")

    async def hear_end(self) -> None:
        """Read until the coordinator ends the session."""
        async with asyncio.timeout(PATIENCE_S):
            while (message := await self.call.read()) is not grpc.aio.EOF:
                self.heard.append(message)

    async def ping(self) -> wire.HeartbeatReply:
        """A heartbeat and its answer: everything said before it was handled."""
        await self.say(wire.NodeMessage(heartbeat=wire.Heartbeat(sent_ms=1)))
        return (await self.hear("heartbeat")).heartbeat

    # ---- rounds

    async def announce(self, round: int, **changes: Any) -> None:
        fields: dict[str, Any] = {
            "round": round,
            "digest": payload_digest(self.peer, round),
            "payload_bytes": 100,
            "samples": 1,
            "compute_ms": 10,
            "loss": 2.0,
        }
        await self.say(wire.NodeMessage(announced=wire.Announced(**(fields | changes))))

    async def hold(self, round: int, *authors: PeerId) -> None:
        digests = [payload_digest(author, round) for author in authors]
        await self.say(wire.NodeMessage(holding=wire.Holding(round=round, digests=digests)))

    async def apply(self, round: int) -> None:
        await self.say(
            wire.NodeMessage(applied=wire.Applied(round=round, state_digest=state_digest(round)))
        )

    # ---- unary calls

    async def commits_after(self, round: int) -> tuple[wire.Commits, list[Commit]]:
        """One page of the log, each commit verified."""
        reply = await self.stub.GetCommits(
            wire.GetCommitsRequest(after_round=round), timeout=PATIENCE_S
        )
        return reply, [opened(row) for row in reply.commits]


def node_of(process: CoordinatorProcess, number: int) -> ScriptedNode:
    return ScriptedNode(process.address, process.run_id, node_key(number))


@asynccontextmanager
async def joined_pair(
    directory: Path, spec: RunSpec
) -> AsyncIterator[tuple[CoordinatorProcess, ScriptedNode, ScriptedNode]]:
    """A coordinator, and nodes 1 and 2, which have joined."""
    async with (
        running(directory, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        await one.join()
        await two.join()
        yield process, one, two


def opened(told: wire.Committed) -> Commit:
    """A commit as it was told, verified."""
    return open_commit(SignedCommit(told.body, told.signature), public_bytes(COORDINATOR_KEY))


def check_chain(run_id: RunId, commits: Iterable[Commit]) -> None:
    """Each follows the one before it, the first follows genesis."""
    previous, previous_round = genesis_digest(run_id), -1
    for commit in commits:
        check_link(commit, run_id, previous, previous_round)
        previous, previous_round = commit_digest(commit), commit.round


async def train(nodes: list[ScriptedNode], rounds: int) -> list[Commit]:
    """Let all nodes take part in `rounds` rounds. Returns the commits that they receive,
    verified.
    """
    told = []
    for _ in range(rounds):
        rounds_opened = [(await node.hear("opened")).opened.round for node in nodes]
        for node in nodes:
            await node.announce(rounds_opened[0])
        for node in nodes:
            await node.hold(rounds_opened[0], *[other.peer for other in nodes if other is not node])
        for node in nodes:
            commit = opened((await node.hear("committed")).committed.commit)
            await node.apply(commit.round)
        told.append(commit)
    return told


async def until_after(condition: Callable[[], bool], step: Callable[[], Awaitable[object]]) -> None:
    """Take steps until a condition holds."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await step()
