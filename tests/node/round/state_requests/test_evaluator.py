"""A node that is asked for the validation loss: which state it measures, when, and what it says."""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from node.model.passes import Tokens
from node.round.state_requests import evaluator as module
from node.round.state_requests.evaluator import Evaluator, Instruments
from node.round.state_requests.measurement import ROUNDS_MAX
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.errors import DataError
from protocol.ids import sha256

SAMPLE_MS = 20
SAMPLES = np.arange(6 * 11, dtype=np.int64).reshape(6, 11)


class Stage:
    """An evaluator whose samples cost time of its own clock, and whose loss is its parameter."""

    def __init__(self) -> None:
        self.now_ms, self.parameter, self.said = 0.0, 2.5, list[wire.Evaluated]()
        self.asked_for: list[int] = []
        self.status = NodeStatus("me", "me")
        self.error: Exception | None = None
        instruments = Instruments(
            kept=lambda: StagedState(self, self.parameter),
            held_out=self.held_out,
            send=lambda message: self.said.append(message.evaluated),
            clock_ms=lambda: self.now_ms,
        )
        self.evaluator = Evaluator(instruments, self.status)
        self.passes: list[int] = []

    def held_out(self, count: int) -> Tokens:
        self.asked_for.append(count)
        if self.error:
            raise self.error
        return SAMPLES

    async def begin(self, round: int = 7) -> None:
        self.evaluator.asked(wire.EvaluationAsked(round=round, samples=64))
        await self.evaluator.show_state(round)


@dataclass
class StagedState:
    """A state whose loss is a parameter as it was."""

    stage: Stage
    parameter: float
    at_once: int = 4

    def nats(self, samples: Tokens) -> float:
        self.stage.passes.append(len(samples))
        self.stage.now_ms += SAMPLE_MS * len(samples)
        return self.parameter * len(samples) * 10


async def be_idle(evaluator: Evaluator) -> None:
    while await evaluator.measure_while_idle():
        pass


async def test_the_state_is_that_of_the_round_whatever_is_trained_meanwhile() -> None:
    stage = Stage()
    await stage.begin()
    stage.parameter = 9.0
    await be_idle(stage.evaluator)
    (said,) = stage.said
    assert (said.round, said.loss, said.samples, said.failure) == (7, 2.5, 6, "")
    assert said.data_sha256 == sha256(SAMPLES.astype("<i8").tobytes())
    assert stage.asked_for == [64]
    assert (stage.status.validation_loss, stage.status.validation_round) == (2.5, 7)


async def test_idle_passes_end_as_soon_as_there_is_something_to_do() -> None:
    stage = Stage()
    await stage.begin()
    assert await stage.evaluator.measure_while_idle()
    assert stage.passes == [1]
    assert not stage.said
    await be_idle(stage.evaluator)
    assert stage.passes == [1, 4, 1], "four of 20 ms are a short pass"


async def test_a_round_that_is_not_cut_lends_nothing_and_one_that_is_lends_a_part() -> None:
    stage = Stage()
    await stage.begin()
    await stage.evaluator.borrow_time(1000)
    assert not stage.passes
    stage.evaluator.note_passes(pass_ms=10, cut=True)
    await stage.evaluator.borrow_time(240)
    assert stage.now_ms <= 240 / 4
    assert stage.passes == [1, 2]
    await stage.evaluator.borrow_time(10_000)
    assert [said.loss for said in stage.said] == [2.5]


async def test_a_state_that_is_past_is_declined_and_one_to_come_is_waited_for() -> None:
    stage = Stage()
    stage.evaluator.asked(wire.EvaluationAsked(round=7, samples=64))
    await stage.evaluator.show_state(6)
    await be_idle(stage.evaluator)
    assert not stage.said
    assert not stage.passes
    await stage.evaluator.show_state(8)
    assert stage.said[0].failure == "its state holds round 8 already"
    await stage.evaluator.show_state(8)
    assert len(stage.said) == 1


async def test_the_same_request_again_changes_nothing_and_a_newer_one_takes_its_place() -> None:
    stage = Stage()
    await stage.begin(7)
    assert await stage.evaluator.measure_while_idle()
    stage.evaluator.asked(wire.EvaluationAsked(round=7, samples=64))
    await stage.evaluator.show_state(8)
    assert not stage.said
    stage.parameter = 3.5
    await stage.begin(9)
    await be_idle(stage.evaluator)
    assert [(said.round, said.loss) for said in stage.said] == [(9, 3.5)]


async def test_a_node_without_time_says_so_after_some_rounds() -> None:
    stage = Stage()
    await stage.begin(7)
    for round in range(8, 8 + ROUNDS_MAX + 1):
        assert not stage.said
        await stage.evaluator.show_state(round)
        await stage.evaluator.show_state(round)
    assert "found no time" in stage.said[0].failure


@pytest.mark.parametrize("parameter", [float("nan"), float("inf"), -1.0, 1e6])
async def test_a_loss_that_is_none_is_said_in_words(parameter: float) -> None:
    stage = Stage()
    stage.parameter = parameter
    await stage.begin()
    await be_idle(stage.evaluator)
    assert stage.said[0].failure.startswith("the loss is ")
    assert stage.status.validation_loss is None


async def test_data_that_cannot_be_read_and_memory_that_is_full_end_the_turn_only() -> None:
    for error in (DataError("no held-out text"), torch.OutOfMemoryError("full")):
        stage = Stage()
        stage.error = error
        await stage.begin()
        assert stage.said[0].failure in ("no held-out text", "full")
        stage.error = None
        await stage.begin(9)
        await be_idle(stage.evaluator)
        assert stage.said[1].loss == 2.5


async def test_a_node_that_leaves_passes_the_turn_on_and_one_that_ends_completes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    await stage.begin()
    stage.evaluator.leave()
    assert stage.said[0].failure == "it leaves"
    await stage.begin(9)
    assert len(stage.said) == 1, "whoever leaves begins nothing"
    stage = Stage()
    await stage.begin()
    await stage.evaluator.finish()
    assert stage.said[0].loss == 2.5
    monkeypatch.setattr(module, "FINISH_MS", SAMPLE_MS)
    stage = Stage()
    await stage.begin()
    await stage.evaluator.finish()
    assert "no time" in stage.said[0].failure


async def test_the_writer_of_a_checkpoint_waits_for_the_loss_of_its_state() -> None:
    stage = Stage()
    assert await stage.evaluator.loss_of(7, patience_s=0.0) is None
    await stage.begin()
    assert await stage.evaluator.loss_of(7, patience_s=0.0) is None
    waiting = asyncio.create_task(stage.evaluator.loss_of(7, patience_s=60))
    await asyncio.sleep(0)
    await be_idle(stage.evaluator)
    assert await waiting == 2.5
    assert await stage.evaluator.loss_of(8, patience_s=60) is None


async def test_it_waits_also_while_the_state_is_taken() -> None:
    stage = Stage()
    stage.evaluator.asked(wire.EvaluationAsked(round=7, samples=64))
    looking = asyncio.create_task(stage.evaluator.show_state(7))
    await asyncio.sleep(0)
    waiting = asyncio.create_task(stage.evaluator.loss_of(7, patience_s=60))
    await looking
    await be_idle(stage.evaluator)
    assert await waiting == 2.5


async def test_a_node_that_leaves_while_the_state_is_taken_measures_nothing() -> None:
    stage = Stage()
    stage.evaluator.asked(wire.EvaluationAsked(round=7, samples=64))
    looking = asyncio.create_task(stage.evaluator.show_state(7))
    await asyncio.sleep(0)
    stage.evaluator.leave()
    await looking
    await be_idle(stage.evaluator)
    assert [said.failure for said in stage.said] == ["it leaves"]
    assert not stage.passes
