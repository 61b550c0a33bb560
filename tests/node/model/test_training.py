"""The network at work: gradients until the bell, evaluation."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from node.model import training
from node.model.build import build_model, named_parameters_once
from node.model.training import TrainingModel
from protocol.errors import DeviceError, LocalProtocolError, SettingsError
from tests.node.model.small import GPT2, LLAMA
from tests.support.passes import do_work

torch.set_num_threads(1)


def _samples(count: int, length: int = 8, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 32, (count, length + 1))


def _gradients(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.grad.clone() for name, parameter in named_parameters_once(model).items()
    }


def _reference_nats(model: nn.Module, samples: np.ndarray) -> Tensor:
    """Mean negative log likelihood written out: position t predicts token t + 1."""
    tokens = torch.from_numpy(samples)
    log_odds = model(input_ids=tokens).logits[:, :-1].double().log_softmax(-1)
    return -log_odds.gather(-1, tokens[:, 1:, None]).mean()


def _close(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=1e-4, atol=1e-6, msg=name)


class _SmallMemory(nn.Module):
    """Runs out of memory, as a GPU does, above `largest` samples: halfway through the backward
    pass.
    """

    def __init__(self, model: nn.Module, largest: int) -> None:
        super().__init__()
        self.model, self.largest, self.config = model, largest, model.config
        self.passes: list[int] = []

    def forward(self, input_ids: Tensor, **options: Any) -> Any:
        output = self.model(input_ids=input_ids, **options)
        self.passes.append(len(input_ids))
        if len(input_ids) > self.largest:
            if not output.logits.requires_grad:
                raise torch.OutOfMemoryError("tried to allocate 9 GiB")
            output.logits = _FailsBackward.apply(output.logits, self.model)
        return output


class _FailsBackward(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, logits: Tensor, model: nn.Module) -> Tensor:
        context.model = model
        return logits.clone()

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> Any:
        next(context.model.parameters()).grad.fill_(
            1e6
        )  # what an interrupted pass may have left behind
        raise torch.OutOfMemoryError("tried to allocate 9 GiB")


def test_gradients_are_the_mean_over_samples_of_the_written_out_loss(model: nn.Module) -> None:
    samples = _samples(6)
    loss = _reference_nats(model, samples)
    loss.backward()
    expected = _gradients(model)
    work = do_work(TrainingModel(model), [samples])
    assert (work.samples, work.tokens) == (6, 48)
    assert work.loss_nats_per_token == pytest.approx(loss.item(), rel=1e-5)
    _close(_gradients(model), expected)


@pytest.mark.parametrize("cuts", [[6], [1, 5], [2, 2, 2], [4, 1, 1]])
def test_unequal_micro_batches_weigh_by_their_samples(model: nn.Module, cuts: list[int]) -> None:
    samples = _samples(6)
    do_work(TrainingModel(model), [samples])
    expected = _gradients(model)
    pieces = np.split(samples, np.cumsum(cuts)[:-1])
    assert do_work(TrainingModel(model, micro_batch_max=3), pieces).samples == 6
    _close(_gradients(model), expected)


def test_each_round_starts_from_zero(model: nn.Module) -> None:
    trainee = TrainingModel(model)
    do_work(trainee, [_samples(4, seed=1)])
    do_work(trainee, [_samples(4, seed=2)])
    second = _gradients(model)
    model.zero_grad(set_to_none=True)
    do_work(trainee, [_samples(4, seed=2)])
    _close(second, _gradients(model))


def test_the_bell_ends_the_work_and_what_follows_is_not_drawn(model: nn.Module) -> None:
    drawn = []

    def batches() -> Iterator[np.ndarray]:
        for seed in range(5):
            drawn.append(seed)
            yield _samples(2, seed=seed)

    bells = iter([False, False, True])
    work = do_work(TrainingModel(model), batches(), lambda: next(bells))
    assert (work.samples, drawn) == (6, [0, 1, 2])


def test_each_pass_takes_gradients_where_the_parameters_are_by_then(model: nn.Module) -> None:
    first, rest = np.split(_samples(6), [2])
    do_work(TrainingModel(model), [first])
    expected = {name: gradient * 2 for name, gradient in _gradients(model).items()}
    passes = TrainingModel(model).passes([first, rest])
    assert passes.next()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert passes.next()
    assert not passes.next()
    assert (passes.samples, passes.finish().samples) == (6, 6)
    found = _gradients(model)
    do_work(TrainingModel(model), [rest])
    moved = _gradients(model)
    _close(found, {name: (gradient + moved[name] * 4) / 6 for name, gradient in expected.items()})


def test_one_pass_is_done_even_when_the_bell_has_rung(model: nn.Module) -> None:
    assert (
        do_work(TrainingModel(model, micro_batch_max=2), [_samples(6)], lambda: True).samples == 2
    )


def test_no_sample_at_all_is_our_mistake(model: nn.Module) -> None:
    with pytest.raises(LocalProtocolError, match="at least one sample"):
        do_work(TrainingModel(model), [])


def test_work_changes_no_parameter(model: nn.Module) -> None:
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    do_work(TrainingModel(model), [_samples(3)])
    assert all(torch.equal(parameter, before[name]) for name, parameter in model.named_parameters())


def test_a_parameter_that_no_sample_touches_has_a_zero_gradient(model: nn.Module) -> None:
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    do_work(TrainingModel(model), [_samples(2)])
    assert model.get_parameter("unused").grad.tolist() == [0.0, 0.0, 0.0]


def test_out_of_memory_halves_the_micro_batch_and_loses_or_doubles_no_sample(
    model: nn.Module, caplog: pytest.LogCaptureFixture
) -> None:
    batches = [_samples(2, seed=1), _samples(8, seed=2), _samples(3, seed=3)]
    expected_work = do_work(TrainingModel(model), batches)
    expected = _gradients(model)
    small = _SmallMemory(model, largest=3)
    trainee = TrainingModel(small, micro_batch_max=8)
    work = do_work(trainee, iter(batches))
    assert work.samples == expected_work.samples == 13
    assert work.loss_nats_per_token == pytest.approx(expected_work.loss_nats_per_token, rel=1e-5)
    _close(_gradients(model), expected)
    assert trainee.micro_batch_max == 2
    assert "micro-batch halved to 2 samples" in caplog.text
    small.passes.clear()
    do_work(trainee, batches)
    assert max(small.passes) == 2, "the next round should remember"


def test_a_sample_that_never_fits_says_what_to_do(model: nn.Module) -> None:
    with pytest.raises(
        SettingsError, match=r"one sample does not fit the memory of cpu.*9 GiB.*smaller model"
    ):
        do_work(TrainingModel(_SmallMemory(model, largest=0)), [_samples(4)])


def test_memory_that_other_programs_took_is_no_fault_of_the_model(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = _SmallMemory(model, largest=1)
    trainee = TrainingModel(small, micro_batch_max=2)
    do_work(trainee, [_samples(2)])
    small.largest = 0
    with pytest.raises(DeviceError, match=r"other programs took the memory of cpu: .*9 GiB"):
        do_work(trainee, [_samples(2)])
    monkeypatch.setattr(training, "crowded", lambda _: True)
    with pytest.raises(DeviceError, match="other programs"):
        do_work(TrainingModel(small), [_samples(2)])


def test_evaluation_is_the_written_out_loss_and_touches_nothing(model: nn.Module) -> None:
    samples = _samples(5)
    trainee = TrainingModel(model, micro_batch_max=2)
    do_work(trainee, [_samples(2, seed=9)])
    before, state = _gradients(model), torch.get_rng_state()
    assert trainee.evaluate(samples) == pytest.approx(
        _reference_nats(model, samples).item(), rel=1e-5
    )
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(gradient, before[name]) for name, gradient in _gradients(model).items())


def test_evaluation_has_no_dropout_and_training_has() -> None:
    model = build_model("gpt2", GPT2 | {"resid_pdrop": 0.5, "embd_pdrop": 0.5})
    trainee, samples = TrainingModel(model), _samples(4)
    assert trainee.evaluate(samples) == trainee.evaluate(samples)
    losses = {do_work(trainee, [samples]).loss_nats_per_token for _ in range(4)}
    assert len(losses) > 1


def test_evaluation_survives_a_small_memory(model: nn.Module) -> None:
    expected = TrainingModel(model).evaluate(_samples(7))
    assert TrainingModel(_SmallMemory(model, largest=2)).evaluate(_samples(7)) == pytest.approx(
        expected, rel=1e-5
    )


def test_a_fresh_model_knows_nothing() -> None:
    assert TrainingModel(build_model("llama", LLAMA)).evaluate(_samples(16)) == pytest.approx(
        math.log(32), rel=0.02
    )


def test_an_impossible_micro_batch_is_refused(model: nn.Module) -> None:
    with pytest.raises(SettingsError, match=r"micro_batch: expected at least 1 sample, got 0"):
        TrainingModel(model, micro_batch_max=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_finds_about_the_same_gradients(model: nn.Module) -> None:
    samples = _samples(6)
    expected_work = do_work(TrainingModel(model), [samples])
    expected = _gradients(model)
    work = do_work(TrainingModel(model, "cuda"), [samples])
    assert work.loss_nats_per_token == pytest.approx(expected_work.loss_nats_per_token, rel=0.02)
    for name, gradient in _gradients(model).items():
        assert (
            torch.nn.functional.cosine_similarity(
                gradient.cpu().flatten(), expected[name].flatten(), 0
            )
            > 0.98
        ), name


MIXTURE = LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2}


@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("mixtral", MIXTURE | {"num_key_value_heads": 2}),
        (
            "qwen3_moe",
            LLAMA | {"num_experts": 4, "num_experts_per_tok": 2, "num_key_value_heads": 2},
        ),
        ("granitemoe", MIXTURE | {"num_key_value_heads": 2}),
        ("jetmoe", LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 2, "kv_channels": 8}),
    ],
)
def test_a_balance_loss_that_is_asked_for_enters_the_gradient_as_in_transformers(
    model_type: str, config: dict[str, Any]
) -> None:
    asked = {"output_router_logits": True}
    if model_type != "jetmoe":
        asked |= {"router_aux_loss_coef": 0.5}
    model = build_model(model_type, config | asked)
    samples = _samples(3)
    work = do_work(TrainingModel(model, micro_batch_max=1), [samples])
    ours = _gradients(model)
    model.zero_grad()
    for row in torch.from_numpy(samples).split(1):
        inputs, targets = row[:, :-1], row[:, 1:]
        loss = model(input_ids=inputs, labels=inputs, shift_labels=targets).loss
        (loss / len(samples)).backward()
    _close(ours, _gradients(model))
    assert work.samples == 3
    model.config.output_router_logits = False
    do_work(TrainingModel(model, micro_batch_max=1), [samples])
    routers = [name for name in ours if "gate.weight" in name or "router" in name]
    assert routers
    assert any(not torch.allclose(ours[name], _gradients(model)[name]) for name in routers)
