"""A commit's payloads are collected; one that no peer gives is complained of; one that becomes void
is waited for no more.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pytest

from node.control.decisions import DecisionLog
from node.gossip.collector import NotRetainedError
from node.round.collecting import LOOK_S, REPEAT_MS, CommitPayloads
from protocol import wire_pb2 as wire
from protocol.codec.commits import Commit
from protocol.ids import Digest, PeerId
from tests.node.control.test_decisions import Log, decision_log_of, payload_of
from tests.support.virtual_time import loop_ms, virtually

OWN = PeerId("12" * 16)


@dataclass
class Peers:
    """A swarm and a session: `held` is what peers give."""

    held: dict[Digest, bytes] = field(default_factory=dict)
    pulling: bool = False
    gone: bool = False
    complaints: list[wire.NotHeld] = field(default_factory=list)
    offline: str = ""

    async def collect(self, commit: Commit, holders: Sequence[Sequence[PeerId]]) -> list[bytes]:
        while not all(entry.digest in self.held for entry in commit.entries):
            if self.gone:
                raise NotRetainedError("no member keeps it any more", commit.entries[0].digest)
            await asyncio.sleep(0.1)
        return [self.held[entry.digest] for entry in commit.entries]

    def unsourced(self, round: int) -> list[Digest]:
        return [] if self.pulling else [payload_of(round)]

    def now_ms(self) -> int:
        return loop_ms()

    def send(self, message: wire.NodeMessage) -> None:
        self.complaints.append(message.not_held)

    def open(self, round: int, near: frozenset[PeerId] | None = None) -> None: ...

    def set_members(
        self, members: Mapping[PeerId, tuple[str, ...]], relays: Mapping[PeerId, tuple[str, ...]]
    ) -> None: ...

    async def publish(self, round: int, blob: bytes) -> Digest:
        raise NotImplementedError

    def settle(self, round: int, kept: Iterable[Digest]) -> None: ...

    async def kept(self, digest: Digest) -> bytes | None:
        return None

    def holding(self, round: int) -> list[Digest]:
        return []

    def holds(self, commit: Commit) -> bool:
        return False


def decided(log: Log) -> DecisionLog:
    """A log of decisions that has heard of one commit."""
    decisions = decision_log_of(log)
    message = log.decide()
    assert message
    decisions.committed(message)
    return decisions


def test_payloads_that_are_there_are_returned_without_a_complaint() -> None:
    async def main() -> None:
        peers, decisions = Peers({payload_of(0): b"payload"}), decided(Log())
        collected = CommitPayloads(peers, peers, decisions, OWN)
        _, payloads = await collected.collect(await decisions.next())
        assert (payloads, peers.complaints) == ([b"payload"], [])

    virtually(main())


def test_a_payload_that_no_peer_gives_is_complained_of_now_and_then() -> None:
    async def main() -> None:
        peers, decisions = Peers(), decided(Log())
        collecting = asyncio.create_task(
            CommitPayloads(peers, peers, decisions, OWN).collect(await decisions.next())
        )
        await asyncio.sleep(2 * LOOK_S - 1)
        assert peers.complaints == []
        await asyncio.sleep(2)
        assert [(said.round, said.digests) for said in peers.complaints] == [(0, [payload_of(0)])]
        await asyncio.sleep(REPEAT_MS / 1000 + LOOK_S)
        assert len(peers.complaints) == 2
        peers.held[payload_of(0)] = b"payload"
        assert (await collecting)[1] == [b"payload"]

    virtually(main())


def test_a_payload_on_its_way_is_not_complained_of() -> None:
    async def main() -> None:
        peers, decisions = Peers(pulling=True), decided(Log())
        collecting = asyncio.create_task(
            CommitPayloads(peers, peers, decisions, OWN).collect(await decisions.next())
        )
        await asyncio.sleep(10 * LOOK_S)
        assert peers.complaints == []
        collecting.cancel()

    virtually(main())


def test_a_payload_that_every_peer_was_asked_for_in_vain_is_complained_of_at_once() -> None:
    async def main() -> None:
        peers, decisions = Peers(gone=True), decided(Log())
        with pytest.raises(NotRetainedError):
            await CommitPayloads(peers, peers, decisions, OWN).collect(await decisions.next())
        assert [said.round for said in peers.complaints] == [0]

    virtually(main())


def test_a_payload_that_becomes_void_is_waited_for_no_more() -> None:
    async def main() -> None:
        log, peers = Log(), Peers()
        decisions = decided(log)
        collecting = asyncio.create_task(
            CommitPayloads(peers, peers, decisions, OWN).collect(await decisions.next())
        )
        await asyncio.sleep(1)
        decisions.chained([log.void(0)])
        decision, payloads = await collecting
        assert (payloads, decision.kept) == ([b""], [])
        assert (decisions.outdated, decisions.place.void_count) == ("", 1)

    virtually(main())


def test_payloads_are_waited_for_no_more_when_the_run_goes_on_from_a_checkpoint() -> None:
    async def main() -> None:
        log = Log()
        peers, decisions = Peers(), decided(log)
        decision = await decisions.next()
        collecting = asyncio.create_task(
            CommitPayloads(peers, peers, decisions, OWN).collect(decision)
        )
        await asyncio.sleep(1)
        assert not collecting.done()
        decisions.chained([log.restart()])
        assert await collecting == (decision, [])

    virtually(main())
