"""Promises of the reports of parts: one at once, then all of a moment together."""

import asyncio

from node.sums.reports import TOGETHER_S, PartReports
from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.receipts import receipt_name
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


@in_virtual_time
async def test_payloads_of_the_same_ranges_are_named_together() -> None:
    sent = list[wire.NodeMessage]()
    roots = {sha256(bytes([0, number])): (ONE, 0b110) for number in range(200)}
    PartReports(sent.append).add(3, {**roots, A: (TWO, 0b010)})
    assert [each.ranges for each in sent[0].parts.held] == [0b010, 0b110]
    assert len(sent[0].parts.held[1].payloads) == len(roots)
    assert sent[0].ByteSize() < 8.2 * len(roots)


def _told(sent: list[wire.NodeMessage]) -> list[tuple[int, dict[Digest, tuple[PeerId, int]]]]:
    names = {receipt_name(author, root): (root, author) for root in (A, B) for author in (ONE, TWO)}
    told = list[tuple[int, dict[Digest, tuple[PeerId, int]]]]()
    for each in sent:
        held = dict[Digest, tuple[PeerId, int]]()
        for said in each.parts.held:
            for payload in said.payloads:
                root, author = names[payload]
                held[root] = author, said.ranges
        told.append((each.parts.round, held))
    return told
