"""What strangers can do to a public run: nothing that counts.

A landing draws one seed for every kind of stranger, without standing in large number and with
standing as a third of the members that have it; `make soak` plays two hundred random casts.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from coordinator.machine.state.operator import OperatorState
from node.control.decisions import DecisionLog
from tests.simulation.__main__ import main
from tests.simulation.casts import cast_of
from tests.simulation.hostile import KINDS
from tests.simulation.strangers import Cast, judge, quiet_commits
from tests.support.draw import Draw

SEEDS = 500
"""Seeds of which one is drawn for each kind of cast."""

FRESH, STANDING = 12, 2
"""Hostile members without standing, three for each honest one; and with standing, a third of those
that have it."""

OPERATED = Cast(1, hostile=FRESH, operated=True, commits_percent=80)
"""An operator gives every kind of order meanwhile, and the coordinator is killed three times: not
at the same moments of the rounds as in the quiet run, which alone costs some (84.8 % were seen).
"""

LYING_MAJORITY = Cast(1, hostile=6, kind="liars", trust="known", commits_percent=50)
"""Six liars beside four honest members, all of whom would vote. What they cost by silence is
another matter: where everybody is known everybody is waited for."""

OUTAGES = Cast(
    0, hostile=STANDING, kind="receipts", vouched=True, operated=True, commits_percent=40
)
"""A third of those with standing lie, and the coordinator dies three times in forty seconds: rounds
that open while honest members are still away are lost, which is more than a tenth."""


def rounds_open_in_a_pause(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OperatorState, "waits", lambda state: "")


def a_restart_wakes_nobody(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DecisionLog, "restart", None)


@pytest.mark.timeout(600)
def test_strangers_of_every_kind_cost_a_public_run_next_to_nothing() -> None:
    assert judge(Cast(1, hostile=FRESH)) == ""


@pytest.mark.timeout(600)
def test_a_third_with_standing_that_confirm_each_others_lies_get_nothing_counted() -> None:
    assert judge(Cast(1, hostile=STANDING, kind="receipts", vouched=True)) == ""


@pytest.mark.timeout(600)
def test_the_checkers_see_what_the_same_strangers_do_to_a_run_that_trusts_everybody() -> None:
    verdict = judge(Cast(1, hostile=STANDING, kind="receipts", trust="known"))
    assert "counts payloads of" in verdict or "without the commit of round" in verdict


@pytest.mark.timeout(600)
def test_a_majority_that_lies_about_states_is_overruled_by_the_named_auditor() -> None:
    cast = replace(LYING_MAJORITY, audited=True)
    assert judge(cast) == ""


@pytest.mark.timeout(600)
def test_the_checkers_see_what_the_same_majority_does_without_an_auditor() -> None:
    assert "meets an honest node" in judge(LYING_MAJORITY)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_orders_and_deaths_of_the_coordinator_among_strangers_break_no_promise() -> None:
    assert judge(OPERATED) == ""


def test_random_casts_have_every_kind_of_stranger_and_at_most_a_third_of_the_standing() -> None:
    casts = [cast_of(seed) for seed in range(500)]
    assert {cast.kind for cast in casts} == {*KINDS, "mixed"}
    assert all(2 * cast.hostile <= cast.honest for cast in casts if cast.vouched)
    assert any(2 * cast.hostile == cast.honest for cast in casts if cast.vouched)
    assert any(cast.hostile > 2 * cast.honest for cast in casts if not cast.vouched)
    assert {(cast.audited, cast.operated) for cast in casts} == {
        (audited, operated) for audited in (False, True) for operated in (False, True)
    }
    assert cast_of(7) == casts[7]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_liar_that_meets_one_honest_node_before_the_others_come_costs_a_replay() -> None:
    assert judge(cast_of(15)) == ""


@pytest.mark.timeout(600)
def test_the_command_plays_a_cast_of_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--strangers", "--seeds", "1", "--first-seed", "2"]) == 0
    last = capsys.readouterr().out
    assert last.startswith("seeds=1 rounds=")
    assert f"({cast_of(2).kind}={cast_of(2).hostile}) violations=0" in last


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "cast",
    [
        OPERATED,
        replace(OUTAGES, kind="mixed"),
        OUTAGES,
        replace(OPERATED, audited=True),
    ],
    ids=["fresh", "standing", "receipts", "audited"],
)
def test_no_moment_of_an_order_or_a_death_helps_a_stranger(
    cast: Cast, draw: Draw, request: pytest.FixtureRequest
) -> None:
    assert judge(drawn(cast, draw, request)) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("plant", "words"),
    [(rounds_open_in_a_pause, "opens while paused"), (a_restart_wakes_nobody, "Cast")],
)
def test_the_checkers_see_an_order_that_is_not_obeyed(
    plant: Callable[[pytest.MonkeyPatch], None], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    quiet_commits(OPERATED.seed, OPERATED.honest, True)  # without the fault
    plant(monkeypatch)
    assert words in judge(OPERATED)


@pytest.mark.timeout(600)
def test_who_withholds_does_not_make_rounds_wait_for_the_slowest() -> None:
    assert judge(Cast(73, hostile=STANDING, kind="withholders", vouched=True)) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("vouched", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_stranger_stops_steers_or_slows_a_public_run(
    kind: str, vouched: bool, draw: Draw, request: pytest.FixtureRequest
) -> None:
    cast = Cast(0, hostile=FRESH, kind=kind)
    if vouched:
        cast = replace(cast, hostile=STANDING, vouched=True)
    assert judge(drawn(cast, draw, request)) == ""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_lying_majority_touches_an_honest_member_of_an_audited_run(
    draw: Draw, request: pytest.FixtureRequest
) -> None:
    assert judge(drawn(replace(LYING_MAJORITY, audited=True), draw, request)) == ""


def drawn(cast: Cast, draw: Draw, request: pytest.FixtureRequest) -> Cast:
    """The cast with the seed that the draw has for this test."""
    (seed,) = draw.seeds(request.node.name, 1, SEEDS)
    return replace(cast, seed=seed)
