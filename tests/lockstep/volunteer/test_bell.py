"""Whether a machine makes the bell, and when its work counts, in words."""

from typing import Any

import pytest

from lockstep.volunteer.bell import counted_words, judge_bell, limit_trouble, slot_s
from protocol.planner.parameters import Size
from protocol.planner.sums import round_bytes, with_sums
from protocol.runfile import AlgorithmSpec, MembershipSpec, RoundsSpec, RunSpec

SPEC = RunSpec(rounds=RoundsSpec(overlap=0, compute_ms=4_000, publish_ms=2_000, exchange_ms=8_000))
SIZE = Size(1_000_000, 245)
RUNNING: dict[str, Any] = {
    "phase": "computing",
    "round": 57,
    "reason": "2 members train",
    "steps": {"committed": 57, "total": 200},
    "members": [{}, {}],
    "pace": {"compute": 5.0, "publish": 2.0, "exchange": 8.0},
}


def test_a_machine_in_time_is_told_how_many_samples_it_may_train() -> None:
    verdict = judge_bell(0.5, 0.8, 8, SPEC)
    assert verdict.holds
    assert verdict.words.startswith(
        "fast enough: each round gives you 4 s; 8 samples take 0.8 s here"
    )
    assert "up to 56 samples a round" in verdict.words


def test_a_machine_that_ends_between_the_bell_and_the_last_instant_is_told_which_counts() -> None:
    verdict = judge_bell(4.5, 5.5, 4, SPEC)
    assert verdict.holds
    assert verdict.words == (
        "just fast enough: a round waits 6 s for you; 4 samples take 5.5 s here: up to 4 samples a "
        "round"
    )


def test_a_machine_that_is_too_slow_is_told_why_and_what_to_do() -> None:
    verdict = judge_bell(6.5, 7.0, 8, SPEC)
    assert not verdict.holds
    assert verdict.words.startswith("too slow: 8 samples take 7 s here")
    assert "--micro-batch 1" in verdict.remedy
    alone = judge_bell(6.5, 7.0, 1, SPEC)
    assert "1 sample takes" in alone.words
    assert alone.remedy == "more --threads, or a GPU", "no pass is smaller"


def test_a_duty_cycle_leaves_fewer_samples_or_fewer_rounds() -> None:
    half = judge_bell(0.5, 0.8, 8, SPEC, duty_cycle=50)
    assert "up to 24 samples a round" in half.words, "half of the 7 passes that fit, less the rest"
    little = judge_bell(0.5, 0.8, 8, SPEC, duty_cycle=10)
    assert little.holds
    assert little.words.startswith("fast enough, with 10 % of the time not in every round")


def test_in_a_run_under_way_the_next_round_counts_after_a_catch_up() -> None:
    words = counted_words(SPEC, RUNNING, SIZE)
    assert words == (
        "from round 58 on at the earliest, in some 7 s; before that it catches up on the 57 steps "
        "so far, by a snapshot (4 MB) if many"
    )
    overlap = SPEC.model_copy(update={"rounds": SPEC.rounds.model_copy(update={"overlap": 1})})
    assert "in some 5 s" in counted_words(overlap, RUNNING, SIZE)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finished": True}, "never: this run has all its steps; join another one"),
        (
            {
                "phase": "waiting",
                "steps": {"committed": 0},
                "reason": "waiting for members: 0 of 2",
            },
            "in the first round that opens; now: waiting for members: 0 of 2",
        ),
        (
            {"phase": "paused", "steps": {"committed": 1}, "reason": "paused"},
            "in the first round that opens; now: paused; before that it catches up on the step so",
        ),
        (  # a stranger's document
            {"steps": None, "round": float("nan"), "pace": [1]},
            "from round 1 on at the earliest, in some 6 s",
        ),
    ],
)
def test_a_run_that_stands_says_so(changes: dict[str, Any], words: str) -> None:
    assert counted_words(SPEC, RUNNING | changes, SIZE).startswith(words)


def test_a_new_key_in_a_public_run_is_told_of_its_weight() -> None:
    public = SPEC.model_copy(update={"membership": MembershipSpec(trust="public")})
    words = counted_words(public, RUNNING, SIZE)
    assert "for every two established members one newcomer's work is used" in words
    assert "after 50 rounds yours always counts" in words


def test_a_coordinator_that_tells_nothing_leaves_it_open() -> None:
    assert counted_words(SPEC, {}, None).startswith("not known")


def test_limits_that_are_too_low_are_named_with_the_least_one_that_will_do() -> None:
    mixes = SPEC.model_copy(update={"algorithm": AlgorithmSpec(name="gossip-adam")})
    up = limit_trouble(mixes, SIZE, upload=100_000, members=9)  # 2 MB in 10 s
    assert up.startswith("--upload-limit 100000 is too low: one payload of 2 MB needs 20000")
    down = limit_trouble(mixes, SIZE, download=100_000, members=9)  # of one neighbour, in 6 s
    assert down.startswith("--download-limit 100000 is too low: 2 MB come in each round of 6 s")
    assert limit_trouble(mixes, SIZE, upload=300_000, download=400_000, members=9) == ""
    assert limit_trouble(mixes, SIZE, members=9) == ""


def test_where_all_send_to_all_a_download_limit_is_judged_by_the_members() -> None:
    assert limit_trouble(SPEC, SIZE, download=20_000, members=2) == ""
    assert "--download-limit 20000" in limit_trouble(SPEC, SIZE, download=20_000, members=200)


def test_limits_of_a_round_with_sums_do_not_grow_with_the_crowd() -> None:
    summed = with_sums(SPEC, SIZE)
    assert summed.rounds.sums > 0
    received = round_bytes(summed, SIZE, 200)
    every_s = slot_s(summed)
    for members in (200, 2000):
        enough, little = int(1.4 * received / every_s), int(0.6 * received / every_s)
        assert limit_trouble(summed, SIZE, download=enough, members=members) == ""
        assert "is too low" in limit_trouble(summed, SIZE, download=little, members=members)
