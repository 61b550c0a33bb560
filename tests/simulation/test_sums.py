"""Whole runs with summers: the real machines, swarms and summers, with every fault of the
simulation, and with a third of the nodes hostile.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from coordinator.machine.events.effects import SumsAsked
from tests.simulation import summers
from tests.simulation.scenario import Scenario
from tests.simulation.test_simulation import violations
from tests.simulation.verdicts import judge, processes
from tests.support.draw import Draw

SEEDS, QUICK, DRAWN = 500, 2, 4
"""Seeds in all, those of `make test`, and those that one landing draws."""

WITH_RELAYS, WITH_A_MUTE_RELAY = 18, 12
"""Seeds with two relays each."""


@pytest.fixture(scope="module")
def pool() -> Iterator[ProcessPoolExecutor]:
    with processes(2) as pool:
        yield pool


@pytest.mark.timeout(900)
def test_runs_with_summers_keep_their_promises(pool: ProcessPoolExecutor) -> None:
    keep_promises(pool, range(QUICK))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_drawn_runs_with_summers_keep_their_promises(pool: ProcessPoolExecutor, draw: Draw) -> None:
    keep_promises(pool, draw.seeds("sums", DRAWN, SEEDS))


def keep_promises(pool: ProcessPoolExecutor, seeds: Sequence[int]) -> None:
    found = list(pool.map(partial(judge, sums=True), seeds, chunksize=2))
    assert not violations(found)
    assert sum(verdict.commits for verdict in found) > 20 * len(seeds)


@pytest.mark.timeout(900)
def test_relays_add_while_they_die_dawdle_and_are_cut_off() -> None:
    played = Scenario(WITH_RELAYS, sums=True)
    outcome = played.run()
    assert {"relay_kill", "relay_dawdle", "relay_cut_off"} <= outcome.faults.keys()
    relays = played.coordinator.rounds.relays
    assert all(relays.known[relay.peer].work.ranges_added > 20 for relay in played.relays)
    assert len(played.relays) == 2


@pytest.mark.timeout(900)
def test_a_mute_relay_is_asked_and_rounds_go_on_without_it() -> None:
    played = Scenario(WITH_A_MUTE_RELAY, sums=True)
    outcome = played.run()
    journal, known = played.coordinator.journal, played.coordinator.rounds.relays.known
    effects = [effect for row in journal.rows for effect in row.effects]
    asked = {effect.peer for effect in effects if isinstance(effect, SumsAsked)}
    [helpful, mute] = sorted(played.relays, key=lambda relay: relay.mute)
    assert mute.mute
    assert mute.peer in asked
    assert known[mute.peer].work.ranges_added == 0
    assert known[helpful.peer].work.ranges_added > outcome.commits > 40


@pytest.mark.timeout(900)
def test_a_third_of_lying_summers_costs_little() -> None:
    assert summers.cast_of(0).kind == "liars"
    assert not violations([summers.judge(0)])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_third_of_hostile_summers_costs_little(pool: ProcessPoolExecutor, draw: Draw) -> None:
    seeds = draw.seeds("hostile summers", DRAWN, SEEDS)
    assert not violations(list(pool.map(summers.judge, seeds)))
