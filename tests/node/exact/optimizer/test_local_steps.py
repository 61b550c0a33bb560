"""Ranks that make local steps part between two exchanges and are equal after each, to the bit."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

from node.exact.chunks import ChunkLayout
from node.exact.engine import GradientError
from node.exact.local_steps.aggregate import apply
from node.exact.local_steps.optimizer import LocalOptimizer
from node.exact.local_steps.residual import Residual
from node.exact.optimizer import DeMo, parameter_groups
from protocol.errors import SettingsError
from protocol.sums.movements import Movement, code_max
from tests.node.exact.optimizer.pair import Story, Training, told_by

H = 3


def local(rank: int, **settings: Any) -> Training:
    return Training(rank, **{"local_steps": H, "top_k": 64, "named": True} | settings)


def three_rounds(rank: int, **settings: Any) -> Any:
    mine = local(rank, **settings)
    first, digests = float(mine.loss()), []
    for _ in range(3 * H):
        mine.step()
        digests.append(mine.digest())
    return digests, float(mine.loss()) / first


def three_rounds_of_two_scales(rank: int) -> Any:
    return three_rounds(rank, value_bits=2)


def a_bad_gradient_within_a_round(rank: int) -> Any:
    mine = local(rank)
    for _ in range(H):
        mine.step()
    before, said = mine.digest(), []
    for step in range(H):
        mine.backward()
        if rank == 1 and step == 1:
            mine.weight.grad[0, 0] = torch.nan  # type: ignore[index]
        try:
            mine.optimizer.step()
        except Exception as error:
            said.append((step, f"{type(error).__name__}: {error}"))
    returned = mine.digest() == before
    for _ in range(H):
        mine.step()
    return said, returned, mine.digest()


def an_overflow_on_one_rank(rank: int) -> Any:
    """Its step is passed over there, and the round goes on."""
    mine = local(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    digests = []
    for step in range(H):
        mine.optimizer.zero_grad()
        scaler.scale(mine.loss()).backward()
        if step == 1 and rank == 0:
            mine.weight.grad[0, 0] = torch.inf  # type: ignore[index]
        scaler.step(mine.optimizer)
        scaler.update()
        digests.append(mine.digest())
    return digests


def rates_that_part_within_a_round(rank: int) -> Any:
    mine = local(rank)
    for step in range(H):
        mine.group["lr"] = 0.02 if rank == 1 and step == 0 else 0.01
        mine.backward()
        try:
            mine.optimizer.step()
        except Exception as error:
            return step, f"{type(error).__name__}: {error}"
    return None


def parameters_that_differ_from_the_start(rank: int) -> Any:
    mine = local(rank)
    if rank == 1:
        mine.weight.data[0, 0] += 1e-3
    for step in range(H):
        mine.backward()
        try:
            mine.optimizer.step()
        except Exception as error:
            return step, f"{type(error).__name__}: {error}"
    return None


def other_numbers_of_steps(rank: int) -> Any:
    mine = local(rank, local_steps=1 + rank)
    for _ in range(2):
        mine.backward()
        try:
            mine.optimizer.step()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return None


STORIES: list[Story] = [
    three_rounds,
    three_rounds_of_two_scales,
    a_bad_gradient_within_a_round,
    an_overflow_on_one_rank,
    rates_that_part_within_a_round,
    parameters_that_differ_from_the_start,
    other_numbers_of_steps,
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return told_by(Path(tmp_path_factory.mktemp("pair")), STORIES)


@pytest.mark.parametrize("story", ["three_rounds", "three_rounds_of_two_scales"])
def test_ranks_part_within_a_round_and_are_equal_after_it(
    told: list[dict[str, Any]], story: str
) -> None:
    (mine, shrunk), (theirs, _) = (each[story] for each in told)
    equal = [one == other for one, other in zip(mine, theirs, strict=True)]
    assert equal == [False, False, True] * 3
    assert len(set(mine)) == len(mine)
    assert shrunk < 0.9


def test_a_bad_gradient_raises_on_all_ranks_at_the_exchange_and_undoes_the_round(
    told: list[dict[str, Any]],
) -> None:
    (said, returned, after), other = (each["a_bad_gradient_within_a_round"] for each in told)
    assert (said, returned, after) == other
    ((step, sentence),) = said
    assert step == H - 1
    assert sentence.startswith("GradientError: rank 1: ")
    assert "0.weight" in sentence
    assert returned


def test_an_overflow_costs_its_rank_one_local_step(told: list[dict[str, Any]]) -> None:
    mine, theirs = (each["an_overflow_on_one_rank"] for each in told)
    assert mine[0] == mine[1] != theirs[1] != theirs[0]
    assert mine[-1] == theirs[-1]


@pytest.mark.parametrize(
    ("story", "expected"),
    [
        ("rates_that_part_within_a_round", "sum of lr since the last exchange"),
        ("parameters_that_differ_from_the_start", "equal parameters on all ranks, but parameter"),
    ],
)
def test_a_difference_raises_on_all_ranks_at_the_exchange(
    told: list[dict[str, Any]], story: str, expected: str
) -> None:
    mine, theirs = (each[story] for each in told)
    assert mine == theirs
    step, sentence = mine
    assert step == H - 1
    assert sentence.startswith("DivergedError: ")
    assert expected in sentence


def test_ranks_with_other_numbers_of_local_steps_are_told(told: list[dict[str, Any]]) -> None:
    mine, theirs = (each["other_numbers_of_steps"] for each in told)
    assert mine == theirs
    assert "local_steps is 2 on rank 1 where rank 0 has 1" in mine


@pytest.mark.parametrize("bits", [1, 2])
def test_a_round_is_the_exact_path_of_a_node(bits: int) -> None:
    mine = local(0, lr=0.01, weight_decay=0.1, value_bits=bits)
    twin = deepcopy(mine.model)
    parameters = dict(twin.named_parameters())
    committed = {name: each.detach().clone() for name, each in parameters.items()}
    layout = ChunkLayout.from_shapes({name: tuple(each.shape) for name, each in committed.items()})
    inner = LocalOptimizer(None, parameters)
    residual = Residual(layout, 64, "cpu", value_bits=bits)
    samples = torch.Generator().manual_seed(0)
    for _ in range(2):
        for _ in range(H):
            mine.step()
            twin.zero_grad()
            twin(torch.randn(4, 64, generator=samples)).square().mean().backward()
            inner.step(0.01)
        residual.accumulate({n: committed[n] - p.detach() for n, p in parameters.items()})
        cap = code_max(0.01 + 0.01 + 0.01, 1, 64)
        sent = residual.extract(code_max=cap).coefficients
        decay = float(torch.tensor(1 - (0.01 + 0.01 + 0.01) * 0.1))
        apply(layout, committed, [Movement(1, cap, sent)], decay)
        with torch.no_grad():
            for name, each in parameters.items():
                each.copy_(committed[name])
        for name, each in mine.model.named_parameters():
            assert torch.equal(each, committed[name]), name


def test_an_error_is_raised_at_once_in_a_process_alone_and_undoes_the_round() -> None:
    mine = local(0)
    for _ in range(H):
        mine.step()
    before = mine.digest()

    def fails() -> float:
        raise OSError("no more samples")

    mine.step()
    with pytest.raises(OSError, match="no more samples"):
        mine.optimizer.step(fails)
    assert mine.digest() == before
    mine.step()
    mine.backward()
    mine.weight.grad[0, 0] = torch.nan  # type: ignore[index]
    with pytest.raises(GradientError, match=r"got 0\.weight with entries NaN"):
        mine.optimizer.step()
    assert mine.digest() == before
    for _ in range(H):
        mine.step()
    assert mine.digest() != before


def test_a_layer_that_is_frozen_later_moves_no_more_and_does_not_decay() -> None:
    mine = local(0, weight_decay=0.1)
    for _ in range(2 * H):
        mine.step()
    mine.model[0].requires_grad_(False)
    before = [each.detach().clone() for each in mine.model.parameters()]
    for _ in range(2 * H):
        mine.step()
    moved = [
        not torch.equal(each, old)
        for each, old in zip(mine.model.parameters(), before, strict=True)
    ]
    assert moved == [False, False, True, True]


def test_a_layer_that_rests_may_be_set_between_two_exchanges() -> None:
    mine = local(0)
    for _ in range(H):
        mine.step()
    mine.model[0].requires_grad_(False)
    mine.step()
    with torch.no_grad():
        mine.weight.fill_(9.0)
    for _ in range(2 * H):
        mine.step()
    assert mine.weight.eq(9.0).all()


@pytest.mark.parametrize("local_steps", [0, H])
def test_weight_decay_leaves_a_parameter_without_gradients_alone(local_steps: int) -> None:
    mine = local(0, local_steps=local_steps, weight_decay=0.1)
    idle = [torch.nn.Parameter(torch.ones(shape)) for shape in ((64, 64), (9,))]
    mine.optimizer.add_param_group({"params": [("a", idle[0]), ("b", idle[1])]})
    for _ in range(2 * H):
        mine.step()
    assert all(each.eq(1).all() for each in idle)


@pytest.mark.parametrize("local_steps", [0, H])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_changes_no_bit(dtype: torch.dtype, local_steps: int) -> None:
    around, plain = (local(0, local_steps=local_steps) for _ in range(2))
    for _ in range(2 * H):
        around.backward()
        torch.set_default_dtype(dtype)
        try:
            around.optimizer.step()
        finally:
            torch.set_default_dtype(torch.float32)
        plain.step()
        assert around.digest() == plain.digest()


@pytest.mark.parametrize("local_steps", [0, H])
def test_a_model_that_is_converted_later_is_refused_with_both_dtypes(local_steps: int) -> None:
    mine = local(0, local_steps=local_steps)
    mine.step()
    mine.model.to(torch.bfloat16)
    mine.optimizer.zero_grad()
    with pytest.raises(
        SettingsError, match=r"0\.weight to stay torch\.float32.*, got torch\.bfloat16: convert a"
    ):
        mine.optimizer.step()
    early = local(0)
    early.model.to(torch.bfloat16)
    with pytest.raises(SettingsError, match=r"float32 parameters with local_steps, got .*bfloat16"):
        early.optimizer.step()


def cycled(optimizer: DeMo, which: str) -> Any:
    if which == "one":
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=9)
    return torch.optim.lr_scheduler.CyclicLR(optimizer, 0.001, 0.01, step_size_up=4)


@pytest.mark.parametrize("which", ["one", "cyclic"])
def test_a_schedule_that_cycles_momentum_reaches_muon_and_adamw(which: str) -> None:
    mine = local(0)
    schedule, seen = cycled(mine.optimizer, which), []
    for _ in range(8):
        mine.step()
        (member,) = mine.optimizer._placement.local_members
        muon, adamw = (each.param_groups[0] for each in member._inner._optimizers)
        seen.append((mine.group["momentum"], muon["momentum"], adamw["betas"]))
        schedule.step()
    momenta = [momentum for momentum, _, _ in seen]
    assert len({*momenta}) > 4
    assert [muon for _, muon, _ in seen] == momenta
    assert [betas for _, _, betas in seen] == [(min(each, 0.9), 0.99) for each in momenta]


def test_a_cycle_of_momentum_changes_the_steps_and_has_bounds() -> None:
    mine, other = local(0), local(0)
    other.group["momentum"] = 0.5
    mine.step()
    other.step()
    mine.step()
    other.step()
    assert mine.digest() != other.digest()
    other.group["momentum"] = 1.0
    with pytest.raises(SettingsError, match="expected a momentum of 0 to below 1, got 1"):
        other.step()
    every = torch.nn.Linear(64, 64)
    with pytest.raises(ValueError, match="cycle_momentum"):
        cycled(DeMo(every.parameters(), local_steps=0), "one")


def test_parameters_that_somebody_sets_between_rounds_are_where_the_next_begins() -> None:
    mine = local(0)
    for _ in range(H):
        mine.step()
    with torch.no_grad():
        mine.weight.fill_(9.0)
    for _ in range(H):
        mine.step()
    distance = (mine.weight.detach() - 9.0).abs()
    assert 0 < float(distance.max()) < 1


def test_a_copied_optimizer_keeps_its_rounds() -> None:
    mine = local(0)
    for _ in range(H):
        mine.step()
    copied = deepcopy(mine.optimizer)
    assert copied._local_steps == H
    assert [group["inner"] for group in copied.param_groups] == ["muon"]


def test_groups_choose_adamw_for_their_matrices() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    groups = [
        {"params": list(model[0].parameters()), "inner": "adamw"},
        {"params": list(model[1].parameters())},
    ]
    optimizer = DeMo(groups, lr=0.01, local_steps=2, top_k=64)
    model(torch.randn(4, 64)).square().mean().backward()
    optimizer.step()
    assert "exp_avg" in optimizer.state[model[0].weight]
    assert "momentum_buffer" in optimizer.state[model[1].weight]
    assert "exp_avg" in optimizer.state[model[1].bias]


@pytest.mark.parametrize("odd", [-1, 1.5, 10_001])
def test_odd_numbers_of_local_steps_are_refused(odd: Any) -> None:
    with pytest.raises(SettingsError, match="expected local_steps of 0 to"):
        local(0, local_steps=odd)


def test_what_cannot_make_local_steps_is_refused() -> None:
    low = torch.nn.Linear(64, 64, dtype=torch.bfloat16)
    with pytest.raises(SettingsError, match="expected float32 parameters with local_steps, got"):
        DeMo(low.named_parameters(), local_steps=2)
    with pytest.raises(SettingsError, match="expected inner of muon or adamw, got 'sgd'"):
        DeMo([{"params": low.float().parameters(), "inner": "sgd"}], local_steps=2)
    votes = Training(0)
    votes.step()
    with pytest.raises(SettingsError, match="expected the saved group 0 to be with local_steps"):
        local(0).optimizer.load_state_dict(votes.optimizer.state_dict())


def test_local_steps_are_the_default_and_refuse_settings_that_would_count_for_nothing() -> None:
    model = torch.nn.Linear(64, 64)
    group = DeMo(model.parameters()).param_groups[0]
    assert (group["lr"], group["top_k"], group["inner"]) == (1.2e-2, 192, "muon")
    every = DeMo(model.parameters(), local_steps=0).param_groups[0]
    assert (every["lr"], every["top_k"], every["momentum_decay"]) == (1e-3, 32, 0.999)
    assert "inner" not in every
    assert group["value_bits"] == 1
    with pytest.raises(SettingsError, match=r"expected no momentum_decay with local_steps=5.*0.9"):
        DeMo(model.parameters(), momentum_decay=0.9)
    with pytest.raises(SettingsError, match=r"expected value_bits of \(1, 2\) with local steps.*4"):
        DeMo(model.parameters(), value_bits=4)


def test_groups_of_a_model_have_its_tables_apart_and_names() -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(64, 64), torch.nn.Linear(64, 64))
    tables, others = parameter_groups(model)
    assert ([name for name, _ in tables["params"]], tables["inner"]) == (["0.weight"], "adamw")
    assert [name for name, _ in others["params"]] == ["1.weight", "1.bias"]
    assert "inner" not in others
    assert len(parameter_groups(model[1])) == 1
    every = DeMo(parameter_groups(model), local_steps=0)
    assert all("inner" not in group for group in every.param_groups)
