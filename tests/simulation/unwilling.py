"""Members with standing that do their work and are no help: whole nodes, each with a conduct.

    withholds   serves no byte of any payload: who asks it waits in vain
    late        announces just before the last instant of the round
    drops       every second question about a payload ends with a broken link
    greedy      asks every peer for every payload of the last rounds, again and again
    nibbles     does so too, and always stops before the last byte
    mute        says to nobody what it holds

The quiet run is the same one, with the same nodes, none of which has a conduct.
"""

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from node.gossip.swarm import Swarm
from node.links.network import BlobRange, LinkBrokenError, PeerAddress
from node.links.quality.reports import LinkReports
from protocol import wire_pb2 as wire
from protocol.errors import LockstepError
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec
from tests.simulation.link import SimulatedLink
from tests.simulation.node_party import SimulatedNode
from tests.simulation.party import Client
from tests.simulation.strangers import Cast, Strangers

CONDUCTS = ("withholds", "late", "drops", "greedy", "nibbles", "mute")

FOR_EVER_S = 1e6
MARGIN_MS = 40
"""Time before the last instant: a message is under way for that long at most."""

ROUNDS_ASKED = 5
GREEDY_S = 0.05
NIBBLE_BYTES = 40
"""Most of a payload of 60 to 80 bytes."""

TELL_S = 1.0
MEMBERS = 6
FULL_SETTLE_MS, FULL_MEASURED_MS = 60_000, 30_000
"""Rounds grow when the first ones are held up, and come back to their length in some."""

ROUNDS = {"compute_ms": 2000, "publish_ms": 500, "exchange_ms": 1500, "batch_samples_max": 1000}
SAMPLES_MAX = 512
"""Samples that one payload may say in such rounds: a slot that grew holds more than a hundred."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A link as its node measures it."""

    peer: PeerId
    round_trip_ms: int | None = 40
    bit_s: int = 0


class UnwillingNode(SimulatedNode):
    """A node with a conduct."""

    conduct = ""
    digests: Callable[[], list[Digest]] = list
    """The payloads of the last rounds."""
    _publish_by_ms: dict[int, int]

    async def _run(self, client: Client, info: RunInfo, hello: wire.Hello, swarm: Swarm) -> str:
        self._publish_by_ms = {}
        drain, dispatch = client._drain, client._dispatch

        def dispatched(message: wire.CoordinatorMessage, listener: Any) -> None:
            if message.WhichOneof("kind") == "opened":
                self._publish_by_ms[message.opened.round] = message.opened.publish_by_ms
            dispatch(message, listener)

        client._dispatch = dispatched  # type: ignore[method-assign]
        client._drain = lambda outbox: self._said(client, drain(outbox))  # type: ignore[method-assign]
        if self.conduct in ("withholds", "drops"):
            self.place.network.ends[self.peer] = Unhelpful(swarm, self.conduct)
        asking = asyncio.create_task(self._ask_for_everything())
        telling = asyncio.create_task(self._tell_of_links(client, swarm))
        try:
            return await super()._run(client, info, hello, swarm)
        finally:
            asking.cancel()
            telling.cancel()

    async def _tell_of_links(self, client: Client, swarm: Swarm) -> None:
        reports = LinkReports()
        while True:
            await asyncio.sleep(TELL_S)
            links = [Measured(peer) for peer in swarm.peers]
            told = client.sessions_lost, client.now_ms(), swarm.greedy, swarm.breaking
            report = reports.due(links, *told)
            if client.connected and report:
                client.send(report)

    async def _said(
        self, client: Client, messages: AsyncIterator[wire.NodeMessage]
    ) -> AsyncIterator[wire.NodeMessage]:
        async for message in messages:
            kind = message.WhichOneof("kind")
            if kind == "holding" and self.conduct == "mute":
                continue
            if kind == "announced" and self.conduct == "late":
                until_ms = self._publish_by_ms.get(message.announced.round, 0) - MARGIN_MS
                await asyncio.sleep(max(0, until_ms - client.now_ms()) / 1000)
            yield message

    async def _ask_for_everything(self) -> None:
        network = self.place.network
        link = SimulatedLink(network, self.peer, self.place.part_bytes, lambda offers: None)
        while self.conduct in ("greedy", "nibbles"):
            await asyncio.sleep(GREEDY_S)
            for peer in sorted(network.ends):
                for digest in self.digests() if peer != self.peer else ():
                    part = 0 if self.conduct == "greedy" else NIBBLE_BYTES
                    asked = link.fetch(PeerAddress(peer, ()), BlobRange(digest, 0, part))
                    network.world.create_task(_read(asked))


async def _read(parts: Any) -> None:
    try:
        async for _ in parts:
            pass
    except LockstepError:
        pass


class Unhelpful:
    """The server of a node that serves badly."""

    def __init__(self, server: Swarm, conduct: str) -> None:
        self._server, self._conduct, self._asked = server, conduct, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def read(self, digest: Digest, offset: int, count: int) -> tuple[int, bytes] | None:
        """As `LinkServer.read`, if it does."""
        if self._conduct == "withholds":
            await asyncio.sleep(FOR_EVER_S)
        self._asked += 1
        if self._asked % 2:
            raise LinkBrokenError("the link broke")
        return await self._server.read(digest, offset, count)


@dataclass(frozen=True, slots=True)
class Work:
    """What the willing members got done in the measured time."""

    commits: int
    samples: int
    """Their samples in these commits."""
    remarks: tuple[str, ...]
    """What the status says of each of them at the end."""


class Unwilling(Strangers):
    """A public run of nodes that the operator vouches for, a third of which are unwilling."""

    node = UnwillingNode

    def __init__(self, seed: int, conduct: str, *, full: bool, members: int = MEMBERS) -> None:
        """`full`: members compute until the bell; else they have few samples, are there soon, and
        the round ends when all are.
        """
        self.full = full
        if full:
            self.sample_ms = (60, 90, 120)
            self.settle_ms, self.measured_ms = FULL_SETTLE_MS, FULL_MEASURED_MS
        super().__init__(Cast(seed, members))
        willing = members - members // 3
        self.willing, self.unwilling = self.nodes[:willing], self.nodes[willing:]
        referee = self.coordinator.referee
        referee.honest = frozenset(node.peer for node in self.willing)
        for node in self.unwilling:
            assert isinstance(node, UnwillingNode)
            node.conduct, node.digests = conduct, self._digests

    def _spec(self, overlap: int) -> RunSpec:
        spec = super()._spec(overlap)
        if not self.full:
            return spec
        rounds = spec.rounds.model_copy(update=ROUNDS)
        algorithm = spec.algorithm.model_copy(update={"top_k": SAMPLES_MAX})
        return spec.model_copy(update={"rounds": rounds, "algorithm": algorithm})

    def _digests(self) -> list[Digest]:
        commits = self.coordinator.referee.commits[-ROUNDS_ASKED:]
        return [entry.digest for commit in commits for entry in commit.entries]

    def work(self) -> Work:
        """Play it."""
        commits, honest = self.run(), {node.peer for node in self.willing}
        entries = (entry for commit in self.measured for entry in commit.entries)
        samples = sum(each.samples for each in entries if each.author in honest)
        return Work(commits, samples, tuple(self.remarks(self.willing)))

    def remarks(self, nodes: Sequence[SimulatedNode]) -> list[str]:
        """What the coordinator's status says of each of these."""
        members = self.coordinator.rounds.members
        found = (members.get(node.peer) for node in nodes)
        return [members.remark(member) if member else "removed" for member in found]


@functools.cache
def quiet(seed: int, full: bool, members: int) -> Work:
    """The work of the run in which all are willing."""
    return Unwilling(seed, "", full=full, members=members).work()
