"""The rates of a chain against the run file and the operator's signed changes."""

import asyncio
import json
from pathlib import Path

import pytest
import torch

from coordinator.machine.operator.acts import Extend, Rate
from lockstep.audit.rates import RateBook
from lockstep.exit_codes import ExitCode
from protocol.codec.chain import Reschedule
from protocol.codec.commits import Commit, genesis_digest
from protocol.ids import RunId
from protocol.runfile import RunSpec, ScheduleSpec
from protocol.schedule import float32_bits, in_force, scalars
from tests.lockstep.audit.runs import coordinator_in, spec_of
from tests.lockstep.audit.test_verify import verified
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus
from tests.support.waiting import PATIENCE_SECONDS, until

RUN = RunId("ab" * 16)
SPEC = RunSpec(schedule=ScheduleSpec(steps=100, weight_decay=0.1))
CHANGE = Reschedule(RUN, 4, 5, 200, float32_bits(0.01), genesis_digest(RUN))


def commit(step: int, schedule: ScheduleSpec, factor: float = 1) -> Commit:
    changed = schedule.model_copy(update={"learning_rate": schedule.learning_rate * factor})
    return Commit(RUN, step, step, (), *scalars(changed, step), genesis_digest(RUN))


def test_rates_of_the_run_file_and_of_signed_changes_have_no_flaw() -> None:
    book = RateBook(SPEC)
    for step in range(5):
        assert book.flaw(commit(step, SPEC.schedule)) == ""
    book.meet(CHANGE)
    for step in (5, 150, 199):
        assert book.flaw(commit(step, in_force(SPEC.schedule, [CHANGE]))) == ""
    assert book.changes == 1


def test_a_rate_that_nobody_signed_is_a_flaw() -> None:
    book = RateBook(SPEC)
    assert "its learning rate is" in book.flaw(commit(3, SPEC.schedule, factor=1.01))
    assert "its learning rate is" in book.flaw(commit(3, in_force(SPEC.schedule, [CHANGE])))
    book.meet(CHANGE)
    assert "its learning rate is" in book.flaw(commit(5, SPEC.schedule))


def test_a_step_beyond_the_length_of_the_run_is_a_flaw() -> None:
    book = RateBook(SPEC)
    assert "beyond the 100 steps" in book.flaw(commit(100, SPEC.schedule))


def test_a_walk_that_goes_on_in_the_middle_judges_from_the_next_change_on() -> None:
    book = RateBook(SPEC)
    book.resume(50)
    assert book.flaw(commit(60, SPEC.schedule, factor=2)) == ""
    book.meet(CHANGE)
    assert book.flaw(commit(61, SPEC.schedule)) != ""
    book.resume(-1)
    assert book.flaw(commit(0, SPEC.schedule)) == ""


async def _extended(directory: Path) -> None:
    data = tiny_corpus(directory / "data")
    coordinator = coordinator_in(directory, spec_of(100_000))
    await coordinator.start()
    try:
        nodes = [NodeTask(coordinator.address, directory, data, number) for number in range(2)]
        async with nodes[0], nodes[1]:
            for order in (Rate(0.004), Extend(5)):
                await until(lambda: coordinator.rounds.state.head_round >= 1)
                await coordinator.desk.order(order)
                head = coordinator.rounds.state.head_round
                await until(lambda head=head: coordinator.rounds.state.head_round >= head + 2)
            nodes[0].process.leave()
            async with asyncio.timeout(PATIENCE_SECONDS):
                await nodes[0].ended()
    finally:
        await coordinator.stop()


def test_nodes_and_verify_go_on_over_signed_changes_of_the_schedule(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.set_num_threads(1)
    asyncio.run(_extended(tmp_path))
    findings = tmp_path / "findings.json"
    assert verified(tmp_path / "coordinator", "--json", findings) == ExitCode.OK
    found = json.loads(findings.read_text())
    assert (found["schedules"], found["replayed"]) == (2, found["commits"])
    words = " ".join(capsys.readouterr().out.split())
    assert "the operator has changed length or rate 2 times" in words
