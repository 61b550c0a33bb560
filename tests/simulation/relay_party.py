"""A relay of a simulated run that offers to add: the real inbox, swarm, payload log and summer.

Put together as `node.relay.process` does it, like a node (`node_party`). One that dawdles answers
what it is asked after a while; one that is mute holds parts, says so, and never answers.
"""

import asyncio
import random
from dataclasses import dataclass

from node.gossip.payload_check import PayloadCheck
from node.gossip.swarm import Swarm, SwarmLimits
from node.relay.adder import Adder
from node.relay.adding import adding_role
from node.relay.inbox import RelayInbox
from node.system.clock import own_clock_ms
from protocol import wire_pb2 as wire
from protocol.codec.heads import Heads
from protocol.codec.payload_header import read_header
from protocol.run_info import RunInfo
from tests.simulation.heads import SimulatedHeads
from tests.simulation.link import SimulatedLink
from tests.simulation.party import LEFT, Client, Party, Place
from tests.simulation.session import Stub
from tests.simulation.world import Process

RELAYS = (0, 0, 1, 2)
"""Relays of a run with summers: one of these is drawn."""

MUTE = 0.2
"""Share of the relays that never answer."""


class SimulatedRelay(Party):
    """One relay's machine."""

    def __init__(self, place: Place, *, mute: bool = False) -> None:
        super().__init__(place)
        self.mute = mute
        self.late_ms = 0
        """Time that it dawdles with each question."""
        self.heads: Heads | None = None
        self._inbox: RelayInbox | None = None
        self._stopping: asyncio.Event | None = None

    @property
    def at_work(self) -> bool:
        return self._stopping is not None

    def _finish(self) -> None:
        assert self._stopping is not None
        self._stopping.set()

    def in_words(self) -> str:
        if not self.runs or self._inbox is None:
            return f"relay {self.peer[:8]} does not run, or starts; {self.ended}"
        conduct = "mute" if self.mute else f"{self.late_ms} ms late"
        return f"relay {self.peer[:8]} heard of round {self._inbox.round}; {conduct}"

    def _died(self) -> None:
        self._inbox = self._stopping = None
        super()._died()

    # ---- the program

    async def _program(self, process: Process) -> str:
        """As `node.relay.process.RelayProcess`: start, run, drain, stop."""
        stub, began = Stub(self.place.switchboard, self.peer), self.place.world.now_ms + 1
        client = Client(self._key, stub, self._says, began)
        info = await self._fetch_run(client)
        role = adding_role(info, self._key, client.send)
        log = await asyncio.to_thread(self._payloads, info)
        rounds, membership = info.spec.rounds, info.spec.membership
        swarm = Swarm(
            self.peer,
            info.run_id,
            SwarmLimits(rounds.payload_bytes_max, membership.neighbours),
            log,
            SimulatedLink(self.place.network, self.peer, self.place.part_bytes, self._offers),
            check=PayloadCheck(
                info.run_id, lambda round, payload: read_header(payload), role.part_header_of
            ),
            key=self._key,
            report_holding=lambda round, digests: None,
            report_parts=role.report_parts,
            clock_ms=own_clock_ms,
        )
        hello = wire.Hello(addresses=await swarm.start(), relay=True, sums=True)
        self.heads = self.heads or Heads(info.run_id, info.coordinator_key)
        self._stopping = asyncio.Event()
        summer = Dawdler(self, role.adder_of(swarm.parts))
        self._inbox = RelayInbox(
            info,
            swarm,
            lambda reason: self.leave(),
            SimulatedHeads(self.heads, hello),
            summer,
        )
        try:
            await self._run(client, info, hello, swarm)
            client.send(wire.NodeMessage(leave=wire.Leave(reason="the relay stops")))
            await client.flush(2)
        finally:
            if self._inbox:
                await self._inbox.stop()
            await swarm.stop()
        return LEFT

    async def _run(self, client: Client, info: RunInfo, hello: wire.Hello, swarm: Swarm) -> None:
        assert self._inbox is not None
        assert self._stopping is not None
        session = asyncio.create_task(client.run(info, hello, self._inbox))
        failing = asyncio.create_task(swarm.failed())
        left = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait({session, failing, left}, return_when=asyncio.FIRST_COMPLETED)
            for task in (session, failing):
                if task.done():
                    task.result()
        finally:
            for task in (failing, left):
                task.cancel()
            await asyncio.gather(failing, left, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Dawdler:
    """The summer of a relay, which hears its questions late, or never."""

    relay: SimulatedRelay
    summer: Adder

    def asked(self, message: wire.SumsAsked) -> None:
        if not self.relay.mute:
            delay_s = self.relay.late_ms / 1000
            asyncio.get_running_loop().call_later(delay_s, self.summer.asked, message)

    def repeat(self) -> None:
        self.summer.repeat()

    def decided(self, round: int) -> None:
        self.summer.decided(round)


def relays_of(seed: int, place: Place) -> list[SimulatedRelay]:
    """The relays of a seed, by a chance of its own: a seed without relays keeps its history."""
    chance = random.Random(f"relays of {seed}")
    return [
        SimulatedRelay(place, mute=chance.random() < MUTE) for _ in range(chance.choice(RELAYS))
    ]
