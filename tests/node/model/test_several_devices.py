"""Several devices of one machine compute the gradients of one node. Two CPUs stand for two GPUs."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from node.model.build import build_model
from node.model.passes import RoundWork
from node.model.training import TrainingModel
from node.settings import NodeSettings
from node.system.device import choose_devices, describe
from protocol.errors import SettingsError
from tests.support.tiny import CONFIG

torch.set_num_threads(1)

CPU = torch.device("cpu")


def trainee(*others: torch.device, micro_batch: int = 2) -> TrainingModel:
    torch.manual_seed(0)
    made = TrainingModel(build_model("llama", CONFIG), CPU, micro_batch)
    with torch.no_grad():
        for parameter in made.parameters.values():
            parameter.normal_(std=0.2, generator=torch.Generator().manual_seed(parameter.numel()))
    made.spread(others)
    return made


def samples(count: int) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (count, 17))


def work(model: TrainingModel, count: int, between: Callable[[], None] | None = None) -> RoundWork:
    passes = model.passes([samples(count)])
    while passes.next():
        if between:
            between()
    return passes.finish()


def assert_equal_gradients(one: TrainingModel, other: TrainingModel) -> None:
    for name, parameter in one.parameters.items():
        found, expected = other.parameters[name].grad, parameter.grad
        assert isinstance(found, Tensor)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3, 8, 11])
def test_gradients_are_those_of_one_device(count: int) -> None:
    one, three = trainee(), trainee(CPU, CPU)
    expected, found = work(one, count), work(three, count)
    assert (
        (found.samples, found.tokens) == (expected.samples, expected.tokens) == (count, 16 * count)
    )
    assert found.loss_nats_per_token == pytest.approx(expected.loss_nats_per_token, rel=1e-5)
    assert_equal_gradients(one, three)
    work(one, 5)
    work(three, 5)
    assert_equal_gradients(one, three)


def test_a_pass_is_a_micro_batch_on_every_device() -> None:
    passes = trainee(CPU).passes([samples(7)])
    assert passes.next()
    assert passes.samples == 4
    assert passes.next()
    assert passes.samples == 7
    assert not passes.next()


def test_parameters_that_move_between_two_passes_reach_every_device() -> None:
    one, two = trainee(micro_batch=4), trainee(CPU)

    def moving(model: TrainingModel) -> Callable[[], None]:
        def move() -> None:
            with torch.no_grad():
                for parameter in model.parameters.values():
                    parameter.data.mul_(0.9)
            model.moved()

        return move

    work(one, 8, moving(one))
    work(two, 8, moving(two))
    assert_equal_gradients(one, two)


def test_a_device_that_runs_out_of_memory_halves_the_micro_batches_of_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one, two = trainee(), trainee(CPU)
    twin, enough = two.twins[0], two.twins[0].gradient

    def gradient(piece: Tensor) -> float:
        if len(piece) > 1:
            enough(piece)
            raise torch.OutOfMemoryError("too much for this one")
        return enough(piece)

    monkeypatch.setattr(twin, "gradient", gradient)
    work(one, 6)
    assert work(two, 6).samples == 6
    assert two.micro_batch_max == 1
    assert_equal_gradients(one, two)


@pytest.mark.parametrize("device", ["cpu,cpu", "all", "cuda:0,cuda:1", "auto", "cuda"])
def test_lists_of_devices_are_settings(device: str) -> None:
    assert NodeSettings("127.0.0.1:1", Path("."), device=device).device == device


@pytest.mark.parametrize("device", ["cpu,", "auto,cpu", "all,cpu", "cuda:0,,cuda:1", "gpu", ""])
def test_other_words_are_not(device: str) -> None:
    with pytest.raises(SettingsError, match="device: expected cpu, cuda, cuda:N, several with"):
        NodeSettings("127.0.0.1:1", Path("."), device=device)


def test_devices_are_chosen_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_devices("cpu,cpu") == (CPU, CPU)
    assert describe(CPU, CPU) == f"2 x {describe(CPU)}"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    both = choose_devices("all")
    assert [str(each) for each in both] == ["cuda:0", "cuda:1"]
    assert describe(*both) == "card 0 + card 1"
    assert choose_devices("cuda:1,cuda:0") == both[::-1]
    with pytest.raises(SettingsError, match="every GPU once"):
        choose_devices("cuda:0,cuda")
    with pytest.raises(SettingsError, match=r"cuda:2 asked for, found 2"):
        choose_devices("cuda:0,cuda:2")
