import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch

from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.engine import GradientError
from node.exact.optimizer import DeMo
from tests.node.exact import reference
from tests.node.exact.every_step import every_step

SHAPES = [(100, 101), (5,), (64, 2, 40), ()]
LR = 0.004


def parameters(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES
    ]


def give_gradients(params: list[torch.nn.Parameter], seed: int) -> None:
    generator = torch.Generator().manual_seed(1000 + seed)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=generator).to(parameter.dtype)


def steps(optimizer: DeMo, params: list[torch.nn.Parameter], seeds: range) -> None:
    for seed in seeds:
        give_gradients(params, seed)
        optimizer.step()


def values(params: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in params]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def momentum_of(optimizer: DeMo, group: int = 0) -> torch.Tensor:
    return optimizer.state[optimizer.param_groups[group]["params"][0]]["momentum"]


class Plain:
    """One parameter group trained by an engine and the whole-number reference."""

    def __init__(
        self,
        params: list[torch.nn.Parameter],
        settings: DemoSettings,
        lr: float,
        decay: float,
    ) -> None:
        self.tensors = {f"{index}": p.detach().numpy().copy() for index, p in enumerate(params)}
        layout = ChunkLayout.from_shapes(
            {name: tensor.shape for name, tensor in self.tensors.items()}
        )
        self.engine = Momentum(layout, settings, "cpu")
        self.rates = lr, decay

    def step(self, gradients: list[torch.Tensor]) -> None:
        named = {f"{index}": gradient for index, gradient in enumerate(gradients)}
        self.engine.accumulate(named)
        sent = self.engine.extract().coefficients
        self.tensors = reference.apply(self.tensors, [Contribution(1, sent)], *self.rates)


@pytest.mark.parametrize("value_bits", [1, 4])
def test_a_process_alone_makes_the_steps_of_the_reference(value_bits: int) -> None:
    params = parameters()
    heads, tails = params[:2], params[2:]
    optimizer = every_step(
        [
            {"params": heads},
            {"params": tails, "lr": 0.5, "top_k": 9, "weight_decay": 0.0},
        ],
        lr=LR,
        momentum_decay=0.9,
        value_bits=value_bits,
        weight_decay=0.1,
    )
    plain = [
        Plain(heads, DemoSettings(0.9, 32, value_bits), LR, 1 - LR * 0.1),
        Plain(tails, DemoSettings(0.9, 9, value_bits), 0.5, 1.0),
    ]
    for seed in range(4):
        give_gradients(params, seed)
        given = [parameter.grad.clone() for parameter in params if parameter.grad is not None]
        optimizer.step()
        for group, members, gradients in zip(
            plain, (heads, tails), (given[:2], given[2:]), strict=True
        ):
            group.step(gradients)
            for parameter, expected in zip(members, group.tensors.values(), strict=True):
                assert parameter.detach().numpy().tobytes() == expected.tobytes()


def test_named_parameters_train_like_unnamed_ones() -> None:
    named, unnamed = parameters(), parameters()
    # names whose order is not that of the parameters
    by_name = every_step([(name, p) for name, p in zip("dbca", named, strict=True)], lr=LR)
    by_place = every_step(unnamed, lr=LR)
    steps(by_name, named, range(3))
    steps(by_place, unnamed, range(3))
    assert equal(named, unnamed)
    assert by_name.state_dict()["param_groups"][0]["param_names"] == ["d", "b", "c", "a"]


def test_a_model_learns_and_a_closure_returns_its_loss() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64))
    inputs = torch.randn(256, 64)
    targets = inputs.roll(1, dims=1)
    optimizer = every_step(model.parameters(), lr=8e-3, top_k=64)

    def closure() -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs), targets)
        loss.backward()
        return loss.item()

    losses = [optimizer.step(closure) for _ in range(60)]
    assert losses[-1] < losses[0] / 2


def test_a_parameter_moves_by_the_scheduled_learning_rate() -> None:
    params = [torch.nn.Parameter(torch.zeros(64, 64))]
    optimizer = every_step(params, lr=1.0)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    for expected in (1.0, 0.5, 0.25):
        before = values(params)[0]
        steps(optimizer, params, range(1))
        moves = (params[0].detach() - before).abs()
        assert set(moves.unique().tolist()) <= {0.0, expected}
        assert moves.max() == expected
        schedule.step()


def test_a_learning_rate_may_be_a_tensor() -> None:
    plain, tensor = parameters(), parameters()
    steps(every_step(plain, lr=0.5, weight_decay=0.5), plain, range(2))
    steps(every_step(tensor, lr=torch.tensor(0.5), weight_decay=0.5), tensor, range(2))  # type: ignore[arg-type]
    assert equal(plain, tensor)


def test_parameters_without_gradients_stay_as_they_are_and_keep_their_momentum() -> None:
    params = parameters()
    optimizer = every_step(params, lr=LR, weight_decay=0.5)
    steps(optimizer, params, range(2))
    before = values(params)
    momentum = [optimizer.state[params[index]]["momentum"].clone() for index in (0, 2)]
    give_gradients(params, 2)
    params[0].grad = params[3].grad = None
    optimizer.step()
    changed = [
        not torch.equal(parameter, old) for parameter, old in zip(params, before, strict=True)
    ]
    assert changed == [False, True, True, False]
    assert torch.equal(optimizer.state[params[0]]["momentum"], momentum[0])
    assert not torch.equal(optimizer.state[params[2]]["momentum"], momentum[1])


def test_a_step_without_any_gradient_changes_nothing() -> None:
    params = parameters()
    optimizer = every_step(params, lr=LR, weight_decay=0.5)
    steps(optimizer, params, range(2))
    before, momentum = values(params), momentum_of(optimizer).clone()
    optimizer.zero_grad()
    optimizer.step()
    assert equal(values(params), before)
    assert torch.equal(momentum_of(optimizer), momentum)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_move_as_exactly_as_float32_or_better(dtype: torch.dtype) -> None:
    params, signs = parameters(dtype), [torch.nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    before = values(params)
    give_gradients(params, 0)
    for parameter, sign in zip(params, signs, strict=True):
        sign.grad = None if parameter.grad is None else parameter.grad.float()
    optimizer = every_step(params, lr=0.0625, weight_decay=0.5)
    optimizer.step()
    every_step(signs, lr=1.0).step()
    exact = torch.promote_types(dtype, torch.float32)
    for parameter, sign, old in zip(params, signs, before, strict=True):
        decayed = old.to(exact) * (1 - 0.0625 * 0.5)
        assert torch.equal(parameter, (decayed + 0.0625 * sign.to(exact)).to(dtype))
    assert momentum_of(optimizer).dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_resumed_training_equals_an_uninterrupted_one_bit_for_bit(dtype: torch.dtype) -> None:
    whole, broken = parameters(dtype), parameters(dtype)
    uninterrupted = every_step(whole, lr=LR, momentum_decay=0.95)
    steps(uninterrupted, whole, range(6))
    first = every_step(broken, lr=LR, momentum_decay=0.95)
    steps(first, broken, range(3))
    file = io.BytesIO()
    torch.save({"optimizer": first.state_dict(), "parameters": values(broken)}, file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed_params = [torch.nn.Parameter(tensor) for tensor in saved["parameters"]]
    resumed = every_step(resumed_params, lr=1.0)
    resumed.load_state_dict(saved["optimizer"])
    steps(resumed, resumed_params, range(3, 6))
    assert equal(resumed_params, whole)
    assert momentum_of(resumed).dtype == torch.float32
    assert torch.equal(momentum_of(resumed), momentum_of(uninterrupted))
    for each in (resumed, uninterrupted):
        assert each.state[each.param_groups[0]["params"][0]]["accumulations"] == 6


def test_a_loaded_state_is_a_copy_and_may_be_that_of_an_optimizer_before_its_first_step() -> None:
    params, others = parameters(), parameters()
    optimizer, other = every_step(params, lr=LR), every_step(others, lr=LR)
    steps(optimizer, params, range(2))
    fresh = every_step(parameters(), lr=LR).state_dict()
    other.load_state_dict(optimizer.state_dict())
    kept = momentum_of(optimizer).clone()
    steps(optimizer, params, range(2, 3))
    assert torch.equal(momentum_of(other), kept)
    kept = momentum_of(optimizer).clone()
    steps(other, others, range(1))
    assert torch.equal(momentum_of(optimizer), kept)
    other.load_state_dict(fresh)
    steps(other, others, range(1))
    start = parameters()
    lone = every_step(start, lr=LR)
    steps(lone, start, range(1))
    assert torch.equal(momentum_of(other), momentum_of(lone))


def test_copies_and_pickles_go_on_with_the_same_momentum() -> None:
    params = parameters()
    optimizer = every_step(params, lr=LR)
    steps(optimizer, params, range(2))
    copies = [copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))]
    steps(optimizer, params, range(2, 4))
    for other in copies:
        others = other.param_groups[0]["params"]
        steps(other, others, range(2, 4))
        assert equal(others, params)


def test_a_group_added_later_leaves_the_others_their_momentum() -> None:
    params = parameters()
    optimizer = every_step(params[:1], lr=LR)
    steps(optimizer, params[:1], range(2))
    momentum = momentum_of(optimizer).clone()
    optimizer.add_param_group({"params": params[1:], "top_k": 3, "momentum_decay": 0.5})
    give_gradients(params, 5)
    params[0].grad = None
    before = values(params)
    optimizer.step()
    assert torch.equal(momentum_of(optimizer, 0), momentum)
    assert torch.equal(params[0], before[0])
    assert not torch.equal(params[1], before[1])


def test_settings_of_a_group_may_change_between_steps() -> None:
    params = parameters()
    optimizer = every_step(params, lr=LR)
    steps(optimizer, params, range(1))
    optimizer.param_groups[0].update(momentum_decay=0.0, top_k=4096, value_bits=8)
    steps(optimizer, params, range(1, 2))
    # nothing is left of older gradients, and everything but rounding was sent
    gradients = [parameter.grad for parameter in params if parameter.grad is not None]
    assert momentum_of(optimizer).norm() < 0.05 * math.hypot(
        *(gradient.norm() for gradient in gradients)
    )


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e31])
def test_a_broken_gradient_raises_before_anything_changes(bad: float) -> None:
    params = parameters()
    optimizer = every_step([{"params": params[:2]}, {"params": params[2:]}], lr=LR)
    steps(optimizer, params, range(1))
    before = [*values(params), momentum_of(optimizer, 0).clone(), momentum_of(optimizer, 1).clone()]
    give_gradients(params, 1)
    params[2].grad[0, 0, 0] = bad  # type: ignore[index]
    with pytest.raises(GradientError, match=r"expected gradients of magnitude up to 1e\+30"):
        optimizer.step()
    assert equal(before, [*values(params), momentum_of(optimizer, 0), momentum_of(optimizer, 1)])
    steps(optimizer, params, range(2, 3))
    assert not torch.equal(params[0], before[0])


def test_sparse_gradients_are_refused() -> None:
    embedding = torch.nn.Embedding(64, 64, sparse=True)
    optimizer = every_step(embedding.parameters(), lr=LR)
    embedding(torch.tensor([3])).sum().backward()
    with pytest.raises(
        GradientError, match=r"expected dense gradients, got torch\.sparse_coo of parameter 0"
    ):
        optimizer.step()


@pytest.mark.parametrize(
    "wrong",
    [
        {"lr": -1e-3},
        {"lr": math.nan},
        {"lr": math.inf},
        {"weight_decay": -0.1},
        {"momentum_decay": 1.0},
        {"top_k": 0},
        {"top_k": 5000},
        {"value_bits": 3},
    ],
)
def test_settings_outside_their_bounds_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        every_step(parameters(), **wrong)
    optimizer = every_step(parameters())
    with pytest.raises(ValueError, match=next(iter(wrong))):
        optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(3))], **wrong})
    assert len(optimizer.param_groups) == 1


def test_groups_over_two_devices_or_of_whole_numbers_are_refused() -> None:
    elsewhere = torch.nn.Parameter(torch.zeros(3, device="meta"))
    with pytest.raises(ValueError, match=r"on one device, got \['cpu', 'meta'\]"):
        every_step([torch.nn.Parameter(torch.zeros(3)), elsewhere])
    with pytest.raises(ValueError, match=r"float dtypes, got torch\.int64"):
        every_step([torch.zeros(3, dtype=torch.int64)])


def test_the_optimizer_shows_its_settings() -> None:
    shown = repr(every_step(parameters(), lr=0.25, top_k=7))
    assert shown.startswith("DeMo")
    assert "lr: 0.25" in shown
    assert "top_k: 7" in shown
