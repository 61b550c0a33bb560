"""Nodes of a round with a plan, over real links in virtual time: authors, summers and a relay."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from node.gossip.payload_check import PayloadCheck
from node.gossip.payload_log import PayloadLog
from node.gossip.swarm import Swarm, SwarmLimits
from node.links.mesh import Mesh
from node.links.network import PeerAddress
from node.links.protocol import Identity
from node.links.uplink import Uplink
from node.sums.part_check import part_header_of
from node.sums.summer import Summer
from protocol import wire_pb2 as wire
from protocol.codec.payload import Header, PayloadShape, decode, encode
from protocol.codec.payload_header import read_header
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId
from protocol.run_info import RunInfo
from protocol.schedule import float32_bits
from protocol.sums.adding import Author, Result, result_of
from protocol.sums.movements import code_max_of
from protocol.sums.part_list import list_of
from protocol.sums.parts import cut, shape_of
from protocol.sums.plan import SumPlan
from protocol.sums.ranges import ranges_of
from tests.node.links.net import RUN, key_of, peer_of
from tests.node.transports.memory_pipes import MemoryNetwork
from tests.support.tiny import tiny_spec
from tests.support.virtual_time import loop_ms
from tests.support.votes import signs

ROUND = 5
SHAPE = PayloadShape(10, 60, 1, scaled=True)
RANGES = 4
"""Of two and of three chunks."""

LIMITS = SwarmLimits(payload_bytes_max=SHAPE.bytes_max, neighbours=4)
INFO = RunInfo(tiny_spec(), RUN, public_bytes(key_of(99)))
RATE_BITS = float32_bits(0.02)
SAMPLES = 6
"""Of author 0; each next one has made one more."""


def parts_of(author: int) -> list[bytes]:
    """The payload of an author, cut."""
    header = Header(RUN, ROUND, peer_of(author))
    return cut(encode(header, signs(SHAPE.chunks, SHAPE.top_k, author), SHAPE), SHAPE, RANGES)


def root_of(author: int) -> Digest:
    return list_of(parts_of(author)).root


def plan_of(*rows: Sequence[int]) -> SumPlan:
    """The plan in which these nodes add each range."""
    return SumPlan(tuple(frozenset(map(peer_of, row)) for row in rows))


def sum_of(
    number: int, authors: Mapping[int, bytes], silent: Sequence[int] = (), rate: float = 0.02
) -> Result:
    """The sum of a range of these authors' parts, without a network."""
    among = shape_of(SHAPE, ranges_of(SHAPE.chunks, RANGES)[number])
    said = [
        Author(
            peer_of(each), SAMPLES + each, code_max_of(SAMPLES + each, rate, INFO.spec.algorithm)
        )
        for each in sorted({*authors, *silent})
    ]
    parts = {peer_of(each): part for each, part in authors.items()}
    return result_of(RUN, ROUND, said, parts, among, silent=[peer_of(each) for each in silent])


def question(
    ranges: Mapping[int, Sequence[int]], authors: Mapping[int, Digest], rate_bits: int = RATE_BITS
) -> wire.SumsAsked:
    """What the coordinator asks of a summer: by range the places of the silent authors."""
    by_name = sorted(authors, key=peer_of)
    return wire.SumsAsked(
        round=ROUND,
        learning_rate_bits=rate_bits,
        authors=[
            wire.SumAuthor(author=peer_of(each), root=authors[each], samples=SAMPLES + each)
            for each in by_name
        ],
        ranges=[
            wire.RangeAsked(range=number, silent=sorted(by_name.index(each) for each in silent))
            for number, silent in ranges.items()
        ],
    )


@dataclass
class Node:
    """A swarm, and the role of a summer beside it."""

    number: int
    swarm: Swarm
    log: PayloadLog
    remote: PeerAddress
    summer: Summer
    sent: list[wire.NodeMessage] = field(default_factory=list)
    held: dict[Digest, int] = field(default_factory=dict)
    """By root, the ranges whose parts it has reported."""

    @property
    def summed(self) -> dict[int, wire.Summed]:
        """What it has signed last, by range."""
        return {each.summed.range: each.summed for each in self.sent}

    def holds(self, *authors: int, ranges: int) -> bool:
        """Whether it has reported just these ranges of each of these authors."""
        return all(self.held.get(root_of(author)) == ranges for author in authors)


class Crowd:
    """Nodes on one network within this process."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.network = directory, MemoryNetwork()
        self.nodes: dict[int, Node] = {}

    def mesh_of(self, number: int) -> Mesh:
        transport = self.network.transport(str(number))
        identity = Identity(key_of(number), RUN, number)
        return Mesh(identity, [transport], Uplink(None, loop_ms), loop_ms)

    async def add(self, number: int, *, relay: bool = False) -> Node:
        """One more node, not yet introduced."""
        log, key = PayloadLog(self._directory / str(number), 100, 10**9), key_of(number)
        checks = () if relay else (part_header_of(SHAPE),)
        check = PayloadCheck(
            RUN,
            lambda round, blob: read_header(blob) if relay else decode(blob, SHAPE)[0],
            *checks,
        )
        held, sent = dict[Digest, int](), list[wire.NodeMessage]()
        swarm = Swarm(
            peer_of(number),
            RUN,
            LIMITS,
            log,
            self.mesh_of(number),
            check=check,
            key=key,
            report_holding=lambda *what: None,
            report_parts=lambda round, told: held.update(
                {root: ranges for root, (_, ranges) in told.items()}
            ),
            clock_ms=loop_ms,
        )
        remote = PeerAddress(peer_of(number), await swarm.start())
        summer = Summer(INFO, key, SHAPE, swarm.parts, sent.append)
        self.nodes[number] = Node(number, swarm, log, remote, summer, sent, held)
        return self.nodes[number]

    def introduce(self, plan: SumPlan | None, relays: Sequence[int] = ()) -> None:
        """Each node learns all addresses and opens the round."""
        members, by_relay = dict[PeerId, tuple[str, ...]](), dict[PeerId, tuple[str, ...]]()
        for number, node in self.nodes.items():
            among = by_relay if number in relays else members
            among[node.remote.peer_id] = tuple(node.remote.addresses)
        for node in self.nodes.values():
            node.swarm.set_members(members, by_relay)
            node.swarm.open(ROUND, plan=plan)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.swarm.stop()


@asynccontextmanager
async def crowd(
    directory: Path, members: int, plan: SumPlan | None, relay: int | None = None
) -> AsyncIterator[Crowd]:
    """Members 0 to `members` - 1 of an open round, and a relay of this number."""
    together = Crowd(directory)
    try:
        for number in range(members):
            await together.add(number)
        if relay is not None:
            await together.add(relay, relay=True)
        together.introduce(plan, [] if relay is None else [relay])
        yield together
    finally:
        await together.stop()
