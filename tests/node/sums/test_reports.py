"""Promises of the reports of parts: one at once, then all of a moment together."""

import asyncio

from node.sums.reports import TOGETHER_S, PartReports
from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId, sha256
from tests.support.virtual_time import in_virtual_time

A, B = sorted((sha256(b"a"), sha256(b"b")))


ONE, TWO = PeerId("1" * 32), PeerId("2" * 32)


@in_virtual_time
async def test_the_first_report_goes_at_once_and_those_after_it_together() -> None:
    sent = list[wire.NodeMessage]()
    reports = PartReports(sent.append)
    reports.add(3, {A: (ONE, 0b001)})
    assert _told(sent) == [(3, {A: (ONE, 0b001)})]
    reports.add(4, {B: (TWO, 0b010)})
    reports.add(3, {B: (TWO, 0b001)})
    reports.add(3, {B: (TWO, 0b101), A: (ONE, 0b011)})
    assert len(sent) == 1
    await asyncio.sleep(2 * TOGETHER_S)
    assert _told(sent)[1:] == [
        (3, {A: (ONE, 0b011), B: (TWO, 0b101)}),
        (4, {B: (TWO, 0b010)}),
    ]
    await asyncio.sleep(2 * TOGETHER_S)
    reports.add(5, {A: (ONE, 1)})
    assert len(sent) == 4


def _told(sent: list[wire.NodeMessage]) -> list[tuple[int, dict[Digest, tuple[PeerId, int]]]]:
    return [
        (
            each.parts.round,
            {Digest(held.root): (PeerId(held.author), held.ranges) for held in each.parts.held},
        )
        for each in sent
    ]
