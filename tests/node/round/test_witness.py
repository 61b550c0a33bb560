"""Which node reports a payload, and in how many messages."""

import pytest

from node.round.witness import SMALL_RUN_FACTOR, WITNESSES, WitnessReports, is_witness
from protocol import wire_pb2 as wire
from protocol.ids import Digest, PeerId, sha256
from tests.support.waiting import until

PEERS = [PeerId(f"{number:032x}") for number in range(1000)]
DIGESTS = [sha256(bytes([number])) for number in range(200)]


def witnesses(round: int, digest: Digest, members: int, copies_min: int = 1) -> list[PeerId]:
    return [
        peer for peer in PEERS[:members] if is_witness(round, digest, peer, members, copies_min)
    ]


@pytest.mark.parametrize("members", [0, 1, 2, SMALL_RUN_FACTOR * (WITNESSES + 4)])
def test_in_a_run_that_is_not_large_everybody_reports_everything(members: int) -> None:
    assert witnesses(0, DIGESTS[0], members) == PEERS[:members]
    assert is_witness(0, DIGESTS[0], PEERS[-1], members, 1)


def test_in_a_large_run_each_payload_has_about_as_many_witnesses_as_planned_and_never_too_few() -> (
    None
):
    counts = [len(witnesses(3, digest, 1000)) for digest in DIGESTS]
    assert 18 <= sum(counts) / len(counts) <= 22
    assert min(counts) >= 4


@pytest.mark.parametrize("copies_min", [0, 4, 16])
def test_more_copies_ask_for_more_witnesses(copies_min: int) -> None:
    counts = [len(witnesses(3, digest, 1000, copies_min)) for digest in DIGESTS]
    assert min(counts) > copies_min
    assert abs(sum(counts) / len(counts) - (WITNESSES + 4 * copies_min)) < 4


def test_the_work_is_shared_anew_for_each_payload_and_round() -> None:
    drawn = [set(witnesses(round, digest, 1000)) for round in range(2) for digest in DIGESTS[:20]]
    assert len(set().union(*drawn)) > 400
    assert drawn[0] != drawn[20]


class Sent:
    """The reports of a node in a run of `members`, and the messages that they became."""

    def __init__(self, members: int) -> None:
        self.messages: list[tuple[int, list[bytes]]] = []
        self.reports = WitnessReports(PEERS[0], 1, lambda: members, self._send)

    def _send(self, message: wire.NodeMessage) -> None:
        self.messages.append((message.holding.round, list(message.holding.digests)))


def mine(round: int) -> list[Digest]:
    """The payloads that the node is a witness of in a run of a hundred."""
    return [digest for digest in DIGESTS if is_witness(round, digest, PEERS[0], 100, 1)]


def test_a_small_run_hears_at_once() -> None:
    sent = Sent(members=10)
    for digest in DIGESTS[:3]:
        sent.reports.add(5, [digest])
    sent.reports.add(6, [])
    assert sent.messages == [(5, [digest]) for digest in DIGESTS[:3]]


async def test_in_a_large_run_receipts_of_the_same_moment_go_in_one_message() -> None:
    sent = Sent(members=100)
    four, five = mine(4), mine(5)
    assert 10 < len(five) < 80
    sent.reports.add(5, five[:1])
    assert sent.messages == [(5, five[:1])], "the first at once"
    for digest in [digest for digest in DIGESTS if digest != five[0]]:
        sent.reports.add(5, [digest])
    sent.reports.add(4, four)
    assert len(sent.messages) == 1
    await until(lambda: len(sent.messages) > 1)
    assert sent.messages[1:] == [(4, four), (5, five[1:])]


async def test_after_a_silence_the_next_receipt_goes_at_once_again() -> None:
    sent = Sent(members=100)
    sent.reports.add(1, DIGESTS)
    await until(lambda: sent.reports.idle)
    sent.reports.add(2, DIGESTS)
    assert [round for round, _ in sent.messages] == [1, 2]


def test_members_that_only_fill_the_list_thin_no_receipts_out() -> None:
    sent = Sent(members=1000)
    sent.reports.opened(5, assigned=10)
    sent.reports.add(5, DIGESTS[:7])
    assert sent.messages == [(5, DIGESTS[:7])]


async def test_where_the_coordinator_draws_the_witnesses_everything_is_reported() -> None:
    sent = Sent(members=1000)
    sent.reports.opened(5, assigned=0)
    sent.reports.add(5, DIGESTS[:7])
    sent.reports.add(5, DIGESTS[7:])
    await until(lambda: sent.reports.idle)
    assert [digest for _, digests in sent.messages for digest in digests] == DIGESTS


def test_the_author_in_the_header_goes_with_the_receipt() -> None:
    messages: list[wire.NodeMessage] = []
    authors = {DIGESTS[0]: PEERS[7]}
    reports = WitnessReports(PEERS[0], 1, lambda: 2, messages.append, authors.get)
    reports.add(5, DIGESTS[:2])
    assert list(messages[0].holding.authors) == [PEERS[7], ""]
