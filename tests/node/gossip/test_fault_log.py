"""Promises of the fault log: a fault is logged once, until the peer commits another one."""

import logging

import pytest

from node.gossip import fault_log
from node.gossip.fault_log import AGAIN_MAX, BREAKS_MAX, PULLS_KEPT, FaultLog
from node.gossip.machine import events
from protocol.ids import PeerId, RunId, sha256

RUN = RunId("ab" * 16)
A, B, C = (PeerId(letter * 32) for letter in "abc")


def logged(
    caplog: pytest.LogCaptureFixture, faults: FaultLog, *blames: tuple[PeerId, str]
) -> list[tuple[str, str]]:
    """(peer, reason) of each record that these blames leave."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        for peer, reason in blames:
            faults.record(events.Blame(peer, reason))
    return [(record.peer, record.reason) for record in caplog.records]  # type: ignore[attr-defined]


def test_a_repeated_fault_is_logged_once_and_another_one_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults = FaultLog(RUN)
    found = logged(caplog, faults, (A, "one"), (A, "one"), (B, "one"), (A, "two"), (A, "one"))
    assert found == [(A[:8], "one"), (B[:8], "one"), (A[:8], "two"), (A[:8], "one")]


def test_a_peer_is_greedy_that_takes_one_payload_more_often_than_an_honest_one_may(
    caplog: pytest.LogCaptureFixture,
) -> None:
    faults, payloads = FaultLog(RUN), [sha256(bytes([number])) for number in range(3)]
    for _ in range(AGAIN_MAX):
        for payload in payloads:
            faults.note_sent(A, payload, 1000, 1000)
            faults.note_sent(B, payload, 1000, 1000)
    assert faults.greedy == frozenset()
    with caplog.at_level(logging.WARNING):
        faults.note_sent(A, payloads[1], 1, 1000)
        faults.note_sent(A, payloads[1], 999, 1000)
    assert faults.greedy == {A}
    assert len(caplog.records) == 1, "it is said once"


def test_who_always_stops_before_the_last_byte_is_greedy_too() -> None:
    faults, payload = FaultLog(RUN), sha256(b"payload")
    for _ in range(AGAIN_MAX + 1):
        assert faults.greedy == frozenset()
        faults.note_sent(A, payload, 999, 1000)
    assert faults.greedy == {A}


def test_links_to_a_peer_break_when_they_do_in_more_than_a_few_of_the_newest_pulls() -> None:
    faults = FaultLog(RUN)
    for _ in range(BREAKS_MAX):
        faults.note_pull(A, broke=True)
        faults.note_pull(B, broke=True)
    assert faults.breaking == frozenset()
    faults.note_pull(A, broke=True)
    assert faults.breaking == {A}
    for _ in range(PULLS_KEPT - BREAKS_MAX):
        faults.note_pull(A, broke=False)
    assert faults.breaking == frozenset(), "it is no fault any more"


def test_only_the_peers_with_the_newest_faults_are_remembered(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fault_log, "PEERS_MAX", 2)
    faults = FaultLog(RUN)
    logged(caplog, faults, (A, "one"), (B, "one"), (C, "one"))
    assert logged(caplog, faults, (C, "one"), (B, "one")) == []
    assert logged(caplog, faults, (A, "one")) == [(A[:8], "one")]
