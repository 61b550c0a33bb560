"""The schedule, the bookkeeping of recoveries and the table; and a short schedule of faults on real
processes.
"""

import argparse
import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import Event
from protocol.codec.commits import Commit, Entry
from protocol.ids import Digest, PeerId, RunId
from tests.benchmarks import chaos
from tests.benchmarks.chaos import (
    FIRST_S,
    KINDS,
    LAST_S,
    LASTING,
    Fault,
    FaultInjector,
    Run,
    schedule,
)
from tests.benchmarks.chaos_result import Recovery, document, participation, spread, table
from tests.coordinator.machine.driver import A, B, C, Driver

ARGUMENTS = argparse.Namespace(seed=1, nodes=8, minutes=10.0, every=6.0)


@dataclass
class Wire:
    """Notes what is done to it."""

    name: str
    done: list[str]

    def __getattr__(self, deed: str) -> Any:
        return lambda: self.done.append(f"{deed} {self.name}")


@dataclass
class Child:
    pid: int
    coordinator: str = ""

    def note(self) -> dict[str, str]:
        return {"coordinator": self.coordinator}


@dataclass
class StandIn:
    """A cluster of two nodes that notes what is done to it."""

    done: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.children = {None: Child(100), 0: Child(101), 1: Child(102)}
        self.lines = [Wire(f"line {number}", self.done) for number in range(2)]
        self.doors = [Wire(f"door {number}", self.done) for number in range(2)]

    def target(self, number: int | None) -> Child:
        return self.children[number]

    def peer(self, number: int) -> str:
        return f"peer {number}"

    def __getattr__(self, deed: str) -> Any:
        return lambda number: self.done.append(f"{deed} {number}")


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(chaos.time, "monotonic", lambda: self.now_s)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def commit(round: int, *numbers: int) -> Commit:
    entries = tuple(
        Entry(PeerId(f"peer {number}"), Digest(bytes(32)), 10, 1, 4) for number in numbers
    )
    return Commit(RunId("0" * 32), round, round, entries, 0, 0, Digest(bytes(32)))


def injecting(*faults: Fault) -> tuple[StandIn, FaultInjector, Run]:
    cluster, run = StandIn(), Run()
    stand_in: Any = cluster
    return cluster, FaultInjector(stand_in, faults, run), run


def test_the_seed_decides_kind_target_and_time_of_all_faults() -> None:
    assert schedule(1, 8, 600) == schedule(1, 8, 600)
    assert schedule(1, 8, 600) != schedule(2, 8, 600)


def test_every_kind_comes_in_ten_minutes_and_leaves_time_at_both_ends() -> None:
    faults = schedule(1, 8, 600)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert all(FIRST_S <= fault.at_s < 600 - LAST_S for fault in faults)
    assert all((fault.node is None) == fault.kind.endswith("coordinator") for fault in faults)
    assert all((fault.for_s > 0) == (fault.kind in LASTING) for fault in faults)
    assert {fault.node for fault in faults} == {None, *range(8)}


def test_faults_come_as_often_as_asked() -> None:
    assert 8 <= len(schedule(1, 8, 600, every_s=60)) <= 12
    assert 85 <= len(schedule(1, 8, 600)) <= 115


def test_a_killed_node_has_recovered_when_a_later_commit_holds_its_payload(clock: Clock) -> None:
    cluster, injector, run = injecting(Fault(5.0, "kill node", 1))
    injector.advance([], 10)
    assert cluster.done == []
    clock.now_s += 5
    injector.advance([], 10)
    assert cluster.done == ["kill 1"]
    clock.now_s += 2
    injector.advance([commit(11, 0, 1), commit(12, 1)], 12)
    assert len(injector.open_faults) == 1, "announced before the kill"
    clock.now_s += 2
    injector.advance([commit(13, 0, 1)], 13)
    assert injector.open_faults == []
    assert run.recoveries == [Recovery("kill node", 1, 5.0, 4.0, 3)]


def test_the_start_of_a_killed_node_s_successor_is_told_apart(clock: Clock) -> None:
    cluster, injector, run = injecting(Fault(0.0, "kill node", 1))
    cluster.children[1].coordinator = "the address of the one that died"
    injector.advance([], 10)
    cluster.children[1] = Child(103)
    clock.now_s += 2
    injector.advance([], 11)
    cluster.children[1].coordinator = "127.0.0.1:1"
    clock.now_s += 3
    injector.advance([], 12)
    clock.now_s += 1
    injector.advance([commit(13, 1)], 13)
    assert run.recoveries == [Recovery("kill node", 1, 0.0, 6.0, 3, 5.0)]
    restart = document(ARGUMENTS, Run(), run)["restart"]
    assert restart == {
        "start": {"median": 5.0, "p95": 5.0},
        "after": {"median": 1.0, "p95": 1.0},
    }


def test_a_payload_committed_before_the_end_of_a_pause_is_no_recovery(clock: Clock) -> None:
    cluster, injector, run = injecting(Fault(0.0, "stop node", 0, 3.0))
    injector.advance([], 10)
    injector.advance([commit(11, 0, 1)], 11)
    clock.now_s += 3
    injector.advance([], 11)
    assert cluster.done == ["pause 0", "resume 0"]
    assert run.recoveries == []
    injector.advance([commit(12, 0, 1)], 12)
    assert [each.seconds for each in run.recoveries] == [3.0]


def test_any_later_commit_says_that_the_coordinator_is_back(clock: Clock) -> None:
    cluster, injector, run = injecting(Fault(0.0, "kill coordinator", None))
    injector.advance([], 10)
    clock.now_s += 1
    injector.advance([commit(11, 1)], 11)
    assert cluster.done == ["kill None"]
    assert [each.rounds for each in run.recoveries] == [1]


def test_a_successor_is_not_woken_for_the_process_that_slept(clock: Clock) -> None:
    cluster, injector, _ = injecting(Fault(0.0, "stop node", 0, 3.0))
    injector.advance([], 10)
    cluster.children[0].pid += 1
    clock.now_s += 3
    injector.advance([], 10)
    assert cluster.done == ["pause 0"]


def test_a_slow_node_sleeps_most_of_each_pulse_and_is_awake_in_the_end(clock: Clock) -> None:
    cluster, injector, _ = injecting(Fault(0.0, "slow node", 0, 1.0))
    for _ in range(17):
        injector.advance([], 10)
        clock.now_s += 0.0625
    assert cluster.done == ["pause 0", "resume 0", "pause 0", "resume 0", "resume 0"]


def test_a_cut_node_loses_its_line_and_its_door_for_a_while(clock: Clock) -> None:
    cluster, injector, _ = injecting(Fault(0.0, "cut node", 1, 2.0))
    injector.advance([], 10)
    clock.now_s += 2
    injector.advance([], 10)
    assert cluster.done == ["cut line 1", "cut door 1", "mend line 1", "mend door 1"]


def test_the_p95_is_a_value_that_was_seen() -> None:
    assert spread([]) == {"median": None, "p95": None}
    assert spread([3.0]) == {"median": 3.0, "p95": 3.0}
    assert spread(list(range(1, 101))) == {"median": 50.5, "p95": 95}


def test_one_dissenting_digest_resync_or_difference_is_a_divergence() -> None:
    for hurt in (Run(disputed=1), Run(resyncs=1), Run(differs="round 3")):
        assert document(ARGUMENTS, Run(), hurt)["divergences"] == 1
    assert document(ARGUMENTS, Run(), Run())["divergences"] == 0


def test_the_document_has_the_promised_fields_and_the_table_fits_eighty_columns() -> None:
    hurt = Run(
        rounds=900,
        samples=970,
        recoveries=[
            Recovery("kill node", 1, 3.0, 1.0, 1),
            Recovery("stop coordinator", None, 30.0, 123.45, 1000),
        ],
        losses=[2.0, 2.5],
        contributors=3,
        live=4,
        replayed=99_999,
    )
    hurt.faults.update(dict.fromkeys(KINDS, 10))
    found = document(ARGUMENTS, Run(rounds=1000, samples=1000), hurt)
    promised = {
        "faults",
        "rounds_committed",
        "divergences",
        "recovery_rounds",
        "recovery_seconds",
        "throughput_kept",
    }
    assert promised <= found.keys()
    assert found["recovery_by_kind"]["kill node"]["seconds"] == {"median": 1.0, "p95": 1.0}
    assert (found["participation"], found["participation_without_faults"]) == (0.75, None)
    assert (found["loss"], found["loss_at_equal_rounds"]) == (2.25, None)
    assert found["throughput_kept"] == 0.97
    text = io.StringIO()
    Console(file=text, width=200).print(table(found))
    assert max(len(line.rstrip()) for line in text.getvalue().splitlines()) <= 80
    assert "97.0 %" in text.getvalue()
    assert "1: median 1.0 s, 1 rounds; p95 1.0 s, 1 rounds" in text.getvalue()


def test_losses_are_compared_at_equal_rounds_too() -> None:
    calm, hurt = Run(losses=[5.0, 4.0, 3.0, 1.0]), Run(losses=[5.0, 4.5])
    found = document(ARGUMENTS, calm, hurt)
    assert (found["loss"], found["loss_without_faults"]) == (4.75, 3.25)
    assert found["loss_at_equal_rounds_without_faults"] == 4.5


class NotedDriver(Driver):
    """A driver that keeps the events that it was told."""

    def __init__(self, *peers: PeerId) -> None:
        self.told: list[Event] = []
        super().__init__(*peers)

    def tell(self, event: Event) -> list[Effect]:
        self.told.append(event)
        return super().tell(event)


def test_participation_is_contributors_over_the_members_with_a_session(tmp_path: Path) -> None:
    driver = NotedDriver(A, B, C)
    driver.part(C)
    driver.exchange(0, A, B)
    journal = Journal(tmp_path / JOURNAL_NAME)
    journal.append([(driver.now_ms, event) for event in driver.told], [], [])
    journal.close()
    spec = driver.machine.spec
    assert participation(tmp_path, spec, {0}) == (2, 2)
    assert participation(tmp_path, spec, {7}) == (0, 0)


@pytest.mark.parametrize(
    "amiss", [Run(), Run(unrecovered=1), Run(disputed=1), Run(stayed=["node-2: round 7"])]
)
def test_a_failure_is_the_exit_status_and_keeps_the_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], amiss: Run
) -> None:
    place, runs = tmp_path / "place", iter((Run(), amiss))
    place.mkdir()
    monkeypatch.setattr(chaos.tempfile, "mkdtemp", lambda **_: str(place))
    monkeypatch.setattr(chaos, "measured", lambda *_: next(runs))
    monkeypatch.setattr("sys.argv", ["chaos", "--minutes", "1"])
    well = amiss == Run()
    assert chaos.main() == int(not well)
    assert place.exists() == (not well)
    said = capsys.readouterr()
    assert (f"logs are in {place}" in said.err) == (not well)


@pytest.mark.slow
def test_real_processes_recover_from_faults_and_end_equal(tmp_path: Path) -> None:
    faults = (
        Fault(1.0, "kill node", 0),
        Fault(2.0, "corrupt", 1),
        Fault(3.0, "kill coordinator", None),
    )
    run = chaos.measured(tmp_path / "injector", 3, 8.0, faults)
    assert run.faults == {"kill node": 1, "corrupt": 1, "kill coordinator": 1}
    assert (run.unrecovered, run.stayed, run.divergences, run.differs) == (0, [], 0, "")
    assert len(run.recoveries) == 3
    assert run.replayed >= run.rounds > 0
