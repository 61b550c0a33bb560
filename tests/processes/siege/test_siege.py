"""Hosts without a key against real processes. Each attack of one host at a coordinator alone, for a
moment; and all of them, for longer, at every port of a run at work.
"""

from collections.abc import Iterator

import pytest

from lockstep.cluster.local import ClusterSettings
from lockstep.run_file import write_run_file
from tests.processes.siege.catalogue import ATTACKS, FROM_ONE_HOST
from tests.processes.siege.run import (
    BesiegedRun,
    Newcomers,
    OpenCluster,
    Sizes,
    attackers_route,
)
from tests.processes.siege.trial import (
    BACK_S,
    NEWCOMER_S,
    PACE_KEPT,
    Lengths,
    Siege,
    attackers,
)
from tests.processes.strangers.run import Watch, public_spec, usual_descriptors
from tests.processes.watching import watch_until
from tests.support.tiny import tiny_corpus

MEMORY_BYTES = 64_000_000
"""Growth of a process under one attack, at most."""

LOG_BYTES = 20_000
"""Growth of all logs under one attack, beyond that of quiet time: no attempt writes a line."""

MOMENT_S = 1.2


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenCluster]:
    """A coordinator alone."""
    directory = tmp_path_factory.mktemp("alone")
    run_file = directory / "run.toml"
    write_run_file(run_file, public_spec(), force=True)
    settings = ClusterSettings(directory, run_file, tiny_corpus(directory / "data"), nodes=0)
    with usual_descriptors(), OpenCluster(settings) as cluster:
        cluster.start()
        watch_until(cluster, lambda: cluster.coordinator.status.get("run_id"), "a status")
        yield cluster


@pytest.fixture(scope="module")
def knocking(alone: OpenCluster) -> Iterator[Newcomers]:
    with Newcomers(alone.coordinator, alone.address) as newcomers:
        yield newcomers


@pytest.mark.parametrize("name", FROM_ONE_HOST)
def test_a_host_without_a_key_costs_a_coordinator_little_and_keeps_nobody_out(
    name: str, alone: OpenCluster, knocking: Newcomers
) -> None:
    child = alone.coordinator
    with Sizes([child]) as sizes, attackers(name) as attack:
        attack.wait()
        before, logs, came = sizes.begin(), child.log.stat().st_size, len(knocking.waits)
        attack.begin({child.name: alone.address.rpartition(":")[2]}, MOMENT_S)
        assert attack.did(MOMENT_S)["played"]
        watch_until(alone, lambda: len(knocking.waits) > came, "a newcomer that was let in")
        growth = sizes.most[child.name] - before[child.name]
    assert max(wait for _, wait in knocking.waits[came:]) <= NEWCOMER_S
    assert growth <= MEMORY_BYTES
    assert child.log.stat().st_size - logs <= LOG_BYTES
    assert child.exit_status is None


@pytest.fixture(scope="module")
def siege(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Siege]:
    """A run at work."""
    with (
        BesiegedRun(tmp_path_factory.mktemp("siege")) as run,
        Watch(run) as watch,
        Newcomers(run.cluster.coordinator, run.cluster.address) as newcomers,
        Sizes(run.children) as sizes,
    ):
        yield Siege(run, watch, newcomers, sizes)


@pytest.fixture(scope="module")
def route() -> Iterator[str]:
    with attackers_route() as refusal:
        yield refusal


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTACKS)
def test_hosts_without_a_key_cost_a_run_next_to_nothing(
    name: str, siege: Siege, route: str
) -> None:
    if ATTACKS[name].needs_route and route:
        pytest.skip(route)
    outcome = siege.play(name, Lengths())
    assert outcome.did["played"]
    assert outcome.faults == ()
    assert outcome.sessions_lost == 0
    assert outcome.kept >= PACE_KEPT, outcome
    assert max(outcome.memory.values()) <= MEMORY_BYTES, outcome
    assert outcome.back_s < BACK_S, outcome
    assert outcome.newcomers, outcome
    assert outcome.newcomer_s <= NEWCOMER_S, outcome
    assert outcome.log_bytes <= LOG_BYTES, outcome
