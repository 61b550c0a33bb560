"""A round of local steps: as many as fit, at least one, each of one batch."""

import math

import pytest
import torch

from node.exact.engine import GradientError
from node.model.build import build_model
from node.model.local_steps import LocalSteps
from node.model.training import TrainingModel
from protocol.errors import LocalProtocolError
from tests.support.card import Card
from tests.support.tiny import CONFIG


class Recorded:
    """Plain descent that writes down its steps."""

    def __init__(self, trainee: TrainingModel) -> None:
        self.trainee = trainee
        self.rates: list[float] = []

    def step(self, learning_rate: float) -> None:
        self.rates.append(learning_rate)
        with torch.no_grad():
            for parameter in self.trainee.parameters.values():
                assert parameter.grad is not None
                parameter.sub_(learning_rate * parameter.grad)


@pytest.fixture
def trainee() -> TrainingModel:
    torch.manual_seed(1)
    return TrainingModel(build_model("llama", CONFIG), "cpu", micro_batch_max=2)


def batches(*sizes: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 257, (size, 9), generator=generator) for size in sizes]


def all_of(steps: LocalSteps) -> int:
    passes = 0
    while steps.next():
        passes += 1
    return passes


def test_each_batch_makes_one_step_whatever_its_passes(trainee: TrainingModel) -> None:
    recorded = Recorded(trainee)
    steps = LocalSteps(trainee, batches(4, 4, 3), recorded, 0.25)
    assert all_of(steps) == 6, "passes of at most two samples"
    work = steps.finish()
    assert recorded.rates == [0.25] * 3
    assert (work.samples, work.tokens, steps.steps) == (11, 88, 3)


def test_the_later_steps_see_what_the_earlier_ones_learned(trainee: TrainingModel) -> None:
    same = batches(4)[0]
    first = LocalSteps(trainee, [same], Recorded(trainee), 0.5)
    all_of(first)
    before = first.finish().loss_nats_per_token
    again = LocalSteps(trainee, [same], Recorded(trainee), 0.5)
    all_of(again)
    assert again.finish().loss_nats_per_token < before


def test_a_batch_that_the_bell_cuts_short_makes_a_step_of_what_was_trained(
    trainee: TrainingModel,
) -> None:
    recorded = Recorded(trainee)
    steps = LocalSteps(trainee, batches(4, 4), recorded, 0.1)
    for _ in range(3):
        assert steps.next()
    assert (steps.samples, len(recorded.rates)) == (6, 1)
    assert steps.finish().samples == 6
    assert len(recorded.rates) == 2


def test_a_device_that_is_behind_is_given_the_same_steps(trainee: TrainingModel) -> None:
    expected = TrainingModel(build_model("llama", CONFIG), "cpu", micro_batch_max=2)
    expected.model.load_state_dict(trainee.model.state_dict())
    trainee.queue = Card().queue()
    done = []
    for each in (trainee, expected):
        steps = LocalSteps(each, batches(4, 3), Recorded(each), 0.5)
        all_of(steps)
        done.append(steps.finish())
    assert done[0] == done[1]
    for name, parameter in trainee.parameters.items():
        assert torch.equal(parameter, expected.parameters[name]), name


def test_what_blows_up_on_a_device_that_is_behind_is_told_at_the_end_and_moves_nothing(
    trainee: TrainingModel,
) -> None:
    class Blown(Recorded):
        def step(self, learning_rate: float) -> None:
            super().step(learning_rate)
            if len(self.rates) == 1:  # the next gradients come of these parameters
                with torch.no_grad():
                    next(iter(self.trainee.parameters.values())).fill_(math.nan)
                self.kept = [each.clone() for each in self.trainee.parameters.values()]

    trainee.queue, recorded = Card().queue(), Blown(trainee)
    steps = LocalSteps(trainee, batches(2, 2, 2), recorded, 0.5)
    assert all_of(steps) == 3, "nobody waits to find out"
    for parameter, kept in zip(trainee.parameters.values(), recorded.kept, strict=True):
        torch.testing.assert_close(parameter, kept, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(GradientError, match="got others in local step 2 of the round"):
        steps.finish()


def test_gradients_that_blow_up_end_the_round_and_are_not_stepped_on(
    trainee: TrainingModel,
) -> None:
    recorded = Recorded(trainee)
    steps = LocalSteps(trainee, batches(2, 2, 2), recorded, 0.1)
    assert steps.next()
    with torch.no_grad():
        next(iter(trainee.parameters.values())).fill_(float("nan"))
    assert steps.next()
    assert not steps.next()
    with pytest.raises(GradientError):
        steps.finish()
    assert len(recorded.rates) == 1


def test_a_round_without_a_sample_is_our_own_fault(trainee: TrainingModel) -> None:
    with pytest.raises(LocalProtocolError, match="at least one sample"):
        LocalSteps(trainee, [], Recorded(trainee), 0.1).finish()
