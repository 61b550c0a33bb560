"""What users of torch's own optimizers expect, of one process."""

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from node.exact.engine import GradientError
from node.exact.optimizer import DeMo
from node.exact.optimizer.member import line_of_chunks
from protocol.codec import payload_shape
from protocol.errors import SettingsError
from tests.node.exact.every_step import every_step
from tests.node.exact.optimizer.pair import Training, digest

Parameter = torch.nn.Parameter


def matrices(count: int, shape: tuple[int, ...] = (64, 64)) -> list[Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [Parameter(torch.randn(shape, generator=generator)) for _ in range(count)]


def give(params: list[Parameter], seed: int = 0) -> None:
    generator = torch.Generator().manual_seed(seed)
    for each in params:
        each.grad = torch.randn(each.shape, generator=generator).to(each.dtype)


def entries(optimizer: DeMo) -> int:
    """Entries of all tensors in the state."""
    return sum(tensor.numel() for state in optimizer.state.values() for tensor in state.values())


# ---- settings, whenever they are used


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lr", math.nan),
        ("lr", math.inf),
        ("lr", -1.0),
        ("lr", torch.tensor(math.nan)),
        ("lr", "fast"),
        ("lr", None),
        ("weight_decay", math.nan),
        ("momentum_decay", 1.0),
        ("top_k", 0),
    ],
)
def test_a_setting_out_of_bounds_is_refused_at_the_step_that_meets_it(
    name: str, value: Any
) -> None:
    mine = Training(0)
    mine.step()
    state = copy.deepcopy(mine.optimizer.state_dict()["state"])
    mine.backward()
    before = mine.group[name]
    mine.group[name] = value
    assert name in mine.refused()
    assert mine.refused().startswith("SettingsError: expected ")
    kept = mine.optimizer.state_dict()["state"]
    assert all(torch.equal(state[0][key], kept[0][key]) for key in state[0])
    mine.group[name] = before
    assert mine.refused() == "made"


def test_a_group_of_several_with_a_bad_setting_is_named() -> None:
    first, second = matrices(2)
    optimizer = every_step([{"params": [first]}, {"params": [second]}])
    optimizer.param_groups[1]["lr"] = -1
    with pytest.raises(SettingsError, match="lr of at least 0, got -1 in group 1"):
        optimizer.step()


def test_a_rate_of_zero_changes_nothing() -> None:
    mine = Training(0, lr=0.0, weight_decay=0.1)
    before = mine.digest()
    mine.step()
    assert mine.digest() == before


def test_a_comparison_is_every_step_at_least() -> None:
    with pytest.raises(ValueError, match="check_every of at least 1, got 0"):
        every_step(matrices(1), check_every=0)


# ---- parameters and gradients of any kind


def test_an_empty_group_is_idle() -> None:
    (parameter,) = matrices(1)
    optimizer = every_step([{"params": [parameter]}, {"params": [], "weight_decay": 0.0}])
    alone = copy.deepcopy(parameter)
    give([parameter])
    give([alone])
    optimizer.step()
    every_step([alone]).step()
    assert torch.equal(parameter, alone)
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.step()


def test_an_empty_parameter_is_passed_over() -> None:
    (full,) = matrices(1)
    empty = Parameter(torch.randn(0, 64))
    for params in ([empty], [empty, full]):
        optimizer = every_step(params)
        give(params)
        before = full.detach().clone()
        optimizer.step()
        optimizer.load_state_dict(optimizer.state_dict())
        assert torch.equal(before, full) == (len(params) == 1)


def test_an_expanded_gradient_is_read_and_left_as_it_was() -> None:
    params, others = matrices(2, (128, 64)), matrices(2, (128, 64))
    for mine, other in zip(params, others, strict=True):
        mine.grad = torch.ones(1, 1).expand(128, 64)
        other.grad = torch.ones(128, 64)
    kept = [each.grad for each in params]
    every_step(params).step()
    every_step(others).step()
    assert all(torch.equal(mine, other) for mine, other in zip(params, others, strict=True))
    assert [each.grad for each in params] == kept
    assert all(each.grad is not None and each.grad.unique().tolist() == [1.0] for each in params)


def test_gradients_stay_as_they_were() -> None:
    mine = Training(0)
    mine.backward()
    before = digest([each.grad for each in mine.model.parameters() if each.grad is not None])
    mine.optimizer.step()
    after = digest([each.grad for each in mine.model.parameters() if each.grad is not None])
    assert before == after


def test_a_named_parameter_with_a_broken_gradient_is_named() -> None:
    mine = Training(0, named=True)
    mine.backward()
    mine.model[1].bias.grad.fill_(math.nan)
    assert "got 1.bias with entries NaN" in mine.refused()
    mine = Training(0)
    mine.backward()
    mine.model[1].bias.grad.fill_(math.nan)
    assert "got parameter 3 with entries NaN" in mine.refused()
    params = matrices(2)
    optimizer = every_step([{"params": [each]} for each in params])
    give(params)
    params[1].grad.mul_(1e35)  # type: ignore[union-attr]
    with pytest.raises(GradientError, match="got parameter 0 of group 1 with entries from -"):
        optimizer.step()


# ---- frozen parameters


def test_frozen_parameters_cost_nothing() -> None:
    frozen = [each.requires_grad_(False) for each in matrices(4, (256, 256))]
    trained, alone = matrices(2), matrices(2)
    optimizer, lone = every_step([*frozen, *trained]), every_step(alone)
    for seed in range(2):
        give(trained, seed)
        give(alone, seed)
        optimizer.step()
        lone.step()
    assert entries(optimizer) == entries(lone)
    assert all(torch.equal(mine, other) for mine, other in zip(trained, alone, strict=True))
    assert optimizer.state.keys() == set(trained)


def test_a_parameter_may_be_unfrozen_and_the_others_keep_what_they_have() -> None:
    shapes = [(64, 64), (7,), (128, 64), (3, 5), (9,)]
    params = [Parameter(torch.randn(shape)) for shape in shapes]
    for index in (0, 1):
        params[index].requires_grad_(False)
    optimizer = every_step(params)
    for seed in range(3):
        give(params[2:], seed)
        optimizer.step()
    kept = copy.deepcopy([dict(optimizer.state[each]) for each in params[2:]])
    for index in (0, 1):
        params[index].requires_grad_(True)
    optimizer.zero_grad()
    optimizer.step()  # places all of them; none has a gradient
    state = optimizer.state
    assert all(each["accumulations"] == 3 for each in state.values())
    assert torch.equal(state[params[2]]["momentum"], kept[0]["momentum"])
    assert "line" not in state[params[3]]  # params[1] is the first of the small ones now
    line, old = (line_of_chunks(each["line"]) for each in (state[params[1]], kept[1]))
    torch.testing.assert_close(line[7:31], old[:24], rtol=1e-4, atol=1e-5)
    assert not line[:7].abs().gt(1e-5).any()
    assert not state[params[0]]["momentum"].any()
    give(params, 9)
    optimizer.step()
    assert all(each["accumulations"] == 4 for each in state.values())


def test_a_parameter_may_be_frozen_for_a_while() -> None:
    params = matrices(2)
    optimizer = every_step(params)
    give(params)
    optimizer.step()
    params[1].requires_grad_(False).grad = None
    before, momentum = params[1].detach().clone(), optimizer.state[params[1]]["momentum"].clone()
    params[0].grad = torch.randn(64, 64)
    optimizer.step()
    assert torch.equal(params[1], before)
    assert torch.equal(optimizer.state[params[1]]["momentum"], momentum)


def test_a_frozen_parameter_may_be_of_any_dtype_and_a_trained_one_not() -> None:
    small = torch.zeros(64, 64, dtype=torch.float8_e4m3fn)
    packed = Parameter(torch.zeros(8, dtype=torch.uint8), requires_grad=False)
    (trained,) = matrices(1)
    give([trained])
    every_step([Parameter(small, requires_grad=False), packed, trained]).step()
    with pytest.raises(ValueError, match=r"float dtypes, got torch\.float8_e4m3fn of w: freeze it"):
        every_step([("w", Parameter(small))])


def test_a_parameter_without_a_shape_yet_is_left_alone() -> None:
    lazy = torch.nn.LazyLinear(64)
    optimizer = every_step(lazy.parameters())
    optimizer.step()
    lazy(torch.randn(2, 64)).sum().backward()
    before = lazy.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(lazy.weight, before)


# ---- sharded parameters


@pytest.fixture
def process_group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_sharded_parameters_are_refused_by_the_constructor() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 3))
    fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
    with pytest.raises(ValueError, match="expected plain tensors, got DTensor of parameter 0: "):
        every_step(model.parameters())
    with pytest.raises(ValueError, match=r"got DTensor of 0\.weight: DeMo trains whole"):
        every_step(model.named_parameters())


# ---- checkpoints


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_state_through_dcp_makes_the_next_step_bit_equal(dtype: torch.dtype, flat: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    whole = Training(0)
    whole.model.to(dtype)
    give(params := list(whole.model.parameters()))
    whole.optimizer.step()
    saved = get_optimizer_state_dict(whole.model, whole.optimizer, options=options)
    model = copy.deepcopy(whole.model)
    saved = copy.deepcopy(saved)
    model.zero_grad()
    resumed = every_step(model.parameters(), lr=1.0)
    set_optimizer_state_dict(model, resumed, saved, options=options)
    for seed in (1, 2):
        give(params, seed)
        give(list(model.parameters()), seed)
        whole.optimizer.step()
        resumed.step()
    assert digest(params) == digest(list(model.parameters()))


def test_asking_for_a_state_before_the_first_step_leaves_no_trace() -> None:
    asked, plain = Training(0), Training(0)
    get_optimizer_state_dict(asked.model, asked.optimizer)
    for _ in range(3):
        asked.step()
        plain.step()
    assert asked.digest() == plain.digest()
    state, other = (each.optimizer.state[each.weight] for each in (asked, plain))
    assert all(torch.equal(state[key], other[key]) for key in other)


@pytest.mark.parametrize("stepped", [False, True])
def test_the_state_of_another_optimizer_is_refused_with_what_it_is(stepped: bool) -> None:
    mine, params = Training(0), matrices(4)
    mine.step()
    other = torch.optim.AdamW(params)
    if stepped:
        give(params)
        other.step()
    before = copy.deepcopy(mine.optimizer.state_dict())
    with pytest.raises(ValueError, match=r"of DeMo, got a group without \['momentum_decay'"):
        mine.optimizer.load_state_dict(other.state_dict())
    assert mine.optimizer.state_dict()["param_groups"] == before["param_groups"]
    assert torch.equal(
        mine.optimizer.state_dict()["state"][0]["momentum"], before["state"][0]["momentum"]
    )


def test_the_state_of_other_shapes_is_refused() -> None:
    first, second = matrices(2), matrices(2, (128, 64))
    optimizers = [every_step(first), every_step(second)]
    for params, optimizer in zip((first, second), optimizers, strict=True):
        give(params)
        optimizer.step()
    with pytest.raises(
        ValueError, match=r"of parameter 0 with shape \(64, 64\), got one with shape \(128, 64\)"
    ):
        optimizers[0].load_state_dict(optimizers[1].state_dict())


def test_a_state_that_the_user_empties_starts_anew() -> None:
    params, others = matrices(2), matrices(2)
    optimizer = every_step(params)
    for seed in range(2):
        give(params, seed)
        optimizer.step()
    for mine, other in zip(params, others, strict=True):
        other.data.copy_(mine)
    optimizer.state.clear()
    lone = every_step(others)
    for each, stepped in ((params, optimizer), (others, lone)):
        give(each, 5)
        stepped.step()
    assert digest(params) == digest(others)
    assert optimizer.state[params[0]]["accumulations"] == 1


def test_a_payload_that_would_be_too_large_is_refused_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mine = Training(0)
    mine.backward()
    monkeypatch.setattr(payload_shape, "PAYLOAD_BYTES_LIMIT", 10)
    assert mine.refused().startswith("SettingsError: expected payloads of at most 10 bytes")
    assert not mine.optimizer.state[mine.weight]["momentum"].any()


# ---- compiled


def test_a_compiled_step_is_a_graph_break_and_has_the_same_bits() -> None:
    compiled, plain = Training(0), Training(0)
    step = torch.compile(compiled.optimizer.step, backend="eager")
    for _ in range(2):
        compiled.backward()
        step()
        plain.step()
    assert compiled.digest() == plain.digest()


@pytest.mark.parametrize("which", ["autocast", "dtype", "device", "inference"])
def test_what_is_set_around_a_step_does_not_change_its_bits(which: str) -> None:
    shapes = [(64, 64), (128, 3), (5,), ()]
    params, others = ([Parameter(torch.ones(shape)) for shape in shapes] for _ in range(2))
    groups = [
        [{"params": each[:1]}, {"params": each[1:], "value_bits": 2}] for each in (params, others)
    ]
    around, plain = (every_step(each, lr=0.01) for each in groups)
    for seed in range(3):
        give(params, seed)
        give(others, seed)
        with surroundings(which):
            around.step()
        plain.step()
    assert digest(params) == digest(others)
    state, other = around.state[params[0]], plain.state[others[0]]
    assert all(torch.equal(state[key], other[key]) for key in other)
    assert {each.dtype for each in state.values()} == {torch.float32, torch.int64}


@contextmanager
def surroundings(which: str) -> Iterator[None]:
    match which:
        case "autocast":
            with torch.autocast("cpu", torch.bfloat16):
                yield
        case "dtype":
            torch.set_default_dtype(torch.float64)
            try:
                yield
            finally:
                torch.set_default_dtype(torch.float32)
        case "device":
            with torch.device("meta"):
                yield
        case "inference":
            with torch.no_grad():
                yield


# ---- low precision


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_parameters_of_low_precision_follow_those_of_float32(dtype: torch.dtype) -> None:
    low = [Parameter(torch.ones(64, 128, dtype=dtype)), Parameter(torch.ones(3, dtype=dtype))]
    exact = [Parameter(each.detach().float()) for each in low]
    optimizers = [every_step(low, lr=1e-3), every_step(exact, lr=1e-3)]
    for _ in range(20):  # one step alone is below the spacing of bfloat16 at 1.0
        for params, optimizer in zip((low, exact), optimizers, strict=True):
            for each in params:
                each.grad = torch.full_like(each, 0.5)
            optimizer.step()
    for mine, right in zip(low, exact, strict=True):
        assert torch.equal(mine, right.to(dtype))
    assert low[1].lt(1).all()


def test_a_master_copy_follows_what_else_changes_its_parameter() -> None:
    parameters = [Parameter(torch.ones(64, 64).bfloat16()), Parameter(torch.ones(8).bfloat16())]
    optimizer = every_step(parameters, lr=1e-3)
    give(parameters)
    optimizer.step()
    for each in parameters:
        each.data.view(-1)[5] = 42.0
    give(parameters, 1)
    optimizer.step()
    for each in parameters:
        assert optimizer.state[each]["master"].view(-1)[5].sub(42).abs() < 0.1
        assert optimizer.state[each]["master"].view(-1)[6].sub(1).abs() < 0.1


# ---- shapes


def test_thousands_of_tiny_parameters_are_a_few_lines_to_the_engine() -> None:
    generator = torch.Generator().manual_seed(0)
    params = [Parameter(torch.randn(3, generator=generator)) for _ in range(2000)]
    params += [Parameter(torch.randn(2, dtype=torch.float64)) for _ in range(10)]
    optimizer = every_step(params, lr=0.01, weight_decay=0.1)
    for seed in range(2):
        give(params, seed)
        params[7].grad = None
        before = [each.detach().clone() for each in params]
        optimizer.step()
        moved = [not torch.equal(old, new) for old, new in zip(before, params, strict=True)]
        assert moved == [index != 7 for index in range(len(params))]
    assert len(optimizer._placement.members[0].places.layout.shapes) == 2
