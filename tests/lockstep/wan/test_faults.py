"""Faults on a schedule: read, drawn, done once and in time."""

from random import Random

import pytest

from lockstep.wan.faults import Break, LineFault, Mend, Schedule, parse_faults
from protocol.errors import SettingsError


@pytest.mark.parametrize(
    "text",
    [
        "cut:node-2@10s+5s",
        "cut:coordinator@r3+2s",
        "cut-up:node-0@r4+5s",
        "cut-down:node-1@2.5s+0.5s",
        "slow:node-1/10@r4+20s",
        "kill:node-0@r8",
        "kill:coordinator@12s",
    ],
)
def test_a_fault_is_written_as_it_is_read(text: str) -> None:
    (fault,) = parse_faults([text], nodes=4, rounds=30, draws=Random(0))
    assert str(fault) == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("cut", "expected KIND:COMPUTER@WHEN"),
        ("cut:node-2@10", "expected KIND:COMPUTER@WHEN"),
        ("burn:node-2@10s", "expected one of cut, cut-up, cut-down, slow, kill, found 'burn'"),
        ("cut:node-4@10s+5s", "expected node-0 to node-3, .*found 'node-4'"),
        ("slow:coordinator/2@10s+5s", "found 'coordinator'"),
        ("cut:node-2@10s", "expected a duration"),
        ("kill:node-2@10s+5s", "expected no duration"),
        ("slow:node-2@10s+5s", "expected a divisor of at least 1"),
        ("slow:node-2/0.5@10s+5s", "expected a divisor of at least 1"),
        ("cut:node-2/3@10s+5s", "expected a divisor of at least 1"),
        ("random:0", "random:1 to random:100, found 'random:0'"),
        ("random:many", "found 'random:many'"),
    ],
)
def test_an_impossible_fault_is_an_error_with_its_reason(text: str, why: str) -> None:
    with pytest.raises(SettingsError, match=why):
        parse_faults([text], nodes=4, rounds=30, draws=Random(0))


@pytest.mark.parametrize("text", ["cut:relay@10s+5s", "kill:relay@r4"])
def test_a_relay_is_cut_and_killed_where_there_is_one(text: str) -> None:
    (fault,) = parse_faults([text], nodes=2, rounds=30, draws=Random(0), relay=True)
    assert (fault.target, str(fault)) == ("relay", text)
    with pytest.raises(
        SettingsError, match=r"expected a laboratory with a relay \(--relay\), found one without"
    ):
        parse_faults([text], nodes=2, rounds=30, draws=Random(0))


def test_a_line_that_is_not_shaped_cannot_be_slowed() -> None:
    with pytest.raises(
        SettingsError, match="or the coordinator or relay to cut or kill, found 'relay'"
    ):
        parse_faults(["slow:relay/10@r4+5s"], nodes=2, rounds=30, draws=Random(0), relay=True)


def test_random_faults_follow_the_seed_and_leave_time_to_heal() -> None:
    first = parse_faults(["random:50"], nodes=4, rounds=30, draws=Random(7))
    assert first == parse_faults(["random:50"], nodes=4, rounds=30, draws=Random(7))
    assert first != parse_faults(["random:50"], nodes=4, rounds=30, draws=Random(8))
    assert {fault.kind for fault in first} == {"cut", "cut-up", "cut-down", "slow", "kill"}
    assert all(fault.round is not None and 3 <= fault.round <= 21 for fault in first)
    again = parse_faults([str(fault) for fault in first], nodes=4, rounds=30, draws=Random(0))
    assert again == first


def test_each_fault_happens_once_and_is_mended_once() -> None:
    cut = LineFault("cut", "node-0", at_s=10.0, for_s=5.0)
    schedule = Schedule([cut])
    happened = [
        (now_s, what) for now_s in range(30) for what in schedule.take_due(float(now_s), round=0)
    ]
    assert happened == [(10, Break(cut)), (15, Mend(cut))]
    assert schedule.done


def test_a_fault_of_a_round_waits_for_the_round_and_lasts_from_then() -> None:
    slow = LineFault("slow", "node-0", round=4, for_s=5.0, divisor=10.0)
    schedule = Schedule([slow])
    assert schedule.take_due(100.0, round=3) == []
    assert schedule.take_due(101.0, round=6) == [Break(slow)]
    assert schedule.take_due(105.9, round=9) == []
    assert not schedule.done
    assert schedule.take_due(106.0, round=9) == [Mend(slow)]


def test_a_line_is_mended_before_it_breaks_again() -> None:
    first, second = (
        LineFault("cut", "node-0", at_s=1.0, for_s=1.0),
        LineFault("cut", "node-0", at_s=2.0, for_s=1.0),
    )
    schedule = Schedule([first, second])
    schedule.take_due(1.0, round=0)
    assert schedule.take_due(2.0, round=0) == [Mend(first), Break(second)]


def test_a_kill_needs_no_mending() -> None:
    schedule = Schedule([LineFault("kill", "node-0", round=0)])
    assert len(schedule.take_due(0.0, round=0)) == 1
    assert schedule.done
