"""Two ranks that stop, roll back, freeze, grow or convert between two exchanges, and stay equal."""

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.node.exact.optimizer.pair import Story, Training, told_by

H = 3

STEPS = 3 * H - 1


def local(rank: int, **settings: Any) -> Training:
    return Training(rank, **{"local_steps": H, "top_k": 64, "named": True} | settings)


def kept(mine: Training) -> Any:
    state = mine.model.state_dict(), mine.optimizer.state_dict(), mine._samples.get_state()
    return copy.deepcopy(state)


def put_back(mine: Training, saved: Any) -> None:
    mine.model.load_state_dict(saved[0])
    mine.optimizer.load_state_dict(copy.deepcopy(saved[1]))
    mine._samples.set_state(saved[2])


def said_by(step: Any) -> str:
    try:
        step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def lives(rank: int, **settings: Any) -> Any:
    """The digests of a whole training; of those resumed after each step; of one rolled back."""
    whole, states = local(rank, **settings), []
    digests = []
    for _ in range(STEPS):
        states.append(kept(whole))
        whole.step()
        digests.append(whole.digest())
    resumed = []
    for stop, saved in enumerate(states):
        mine = local(rank, **settings)
        put_back(mine, saved)
        resumed.append(digests[:stop])
        for _ in range(stop, STEPS):
            mine.step()
            resumed[-1].append(mine.digest())
    put_back(whole, states[2])
    back = digests[:2]
    for _ in range(2, STEPS):
        whole.step()
        back.append(whole.digest())
    return digests, resumed, back


def lives_with_local_steps(rank: int) -> Any:
    return lives(rank, weight_decay=0.1)


def lives_without_local_steps(rank: int) -> Any:
    return lives(rank, local_steps=0)


def one_state_for_all(rank: int) -> Any:
    """As transformers' Trainer has it, which saves and loads that of the first rank."""
    mine = local(rank)
    for _ in range(H + 1):
        mine.step()
    told = [kept(mine)]
    dist.broadcast_object_list(told, 0)
    put_back(mine, (*told[0][:2], mine._samples.get_state()))
    digests = []
    for _ in range(2 * H):
        mine.step()
        digests.append(mine.digest())
    return digests


def a_failure_that_was_saved(rank: int) -> Any:
    mine = local(rank)
    for step in range(H - 1):
        mine.backward()
        if rank == 1 and step == 0:
            mine.weight.grad[0, 0] = torch.nan  # type: ignore[index]
        mine.optimizer.step()
    saved, start = kept(mine), local(rank).digest()
    other = local(rank)
    put_back(other, saved)
    other.backward()
    return said_by(other.optimizer.step), other.digest() == start


def a_group_added_between_exchanges(rank: int) -> Any:
    mine, found = local(rank), []
    for _ in range(H + 1):
        mine.step()
    torch.manual_seed(7)
    more = torch.nn.Linear(64, 64)
    mine.optimizer.add_param_group({"params": [*more.named_parameters()], "lr": 0.02})
    start = more.weight.detach().clone()
    mine.model.append(more)
    for _ in range(2 * H - 1):
        mine.step()
        found.append(mine.digest())
    return found, not torch.equal(more.weight, start)


def a_layer_frozen_later(rank: int) -> Any:
    """After an exchange, and between two; then it is free again."""
    mine, moved = local(rank, weight_decay=0.1), []
    for steps in (H, H + 1):
        for _ in range(steps):
            mine.step()
        mine.model[0].requires_grad_(False)
        for _ in range(-steps % H):
            mine.step()
        before = mine.weight.detach().clone()
        for _ in range(2 * H):
            mine.step()
        moved.append(not torch.equal(mine.weight, before))
        mine.model[0].requires_grad_(True)
    for _ in range(H):
        mine.step()
    return moved, mine.digest(), not torch.equal(mine.weight, before)


def a_layer_without_gradients_on_one_rank(rank: int) -> Any:
    mine = local(rank, weight_decay=0.1)
    lone = torch.nn.Parameter(torch.ones(64, 64))
    mine.optimizer.add_param_group({"params": [("lone", lone)]})
    before = mine.weight.detach().clone()
    for _ in range(2 * H):
        mine.backward()
        if rank == 1:
            mine.weight.grad = None
        mine.optimizer.step()
    return mine.digest(), not torch.equal(before, mine.weight), bool(lone.eq(1).all())


def a_model_converted_on_all(rank: int) -> Any:
    mine = local(rank)
    for _ in range(H):
        mine.step()
    mine.model.to(torch.bfloat16)
    return [said_by(mine.optimizer.step) for _ in range(H)]


def the_same_samples_on_all(rank: int) -> Any:
    """As if something averaged the gradients; then samples of their own."""
    counts = []
    for seed in (0, rank):
        mine = local(seed)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(3 * H):
                mine.step()
        counts.append([str(each.message) for each in caught])
    return counts


STORIES: list[Story] = [
    lives_with_local_steps,
    lives_without_local_steps,
    one_state_for_all,
    a_failure_that_was_saved,
    a_group_added_between_exchanges,
    a_layer_frozen_later,
    a_layer_without_gradients_on_one_rank,
    a_model_converted_on_all,
    the_same_samples_on_all,
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return told_by(Path(tmp_path_factory.mktemp("pair")), STORIES)


def alike(told: list[dict[str, Any]], story: Story) -> Any:
    first, second = (each[story.__name__] for each in told)
    assert first == second
    return first


@pytest.mark.parametrize("story", [lives_with_local_steps, lives_without_local_steps])
def test_ranks_resume_after_any_step_and_roll_back_with_the_same_bits(
    told: list[dict[str, Any]], story: Story
) -> None:
    ends = []
    for each in told:
        digests, resumed, back = each[story.__name__]
        assert len({*digests}) == STEPS
        assert resumed == [digests] * STEPS
        assert back == digests
        ends.append(digests[2 * H - 1])
    assert ends[0] == ends[1]


def test_one_ranks_state_loaded_on_all_goes_on_with_equal_ranks(
    told: list[dict[str, Any]],
) -> None:
    mine, theirs = (each["one_state_for_all"] for each in told)
    equal = [one == other for one, other in zip(mine, theirs, strict=True)]
    assert equal == [False, True, False, False, True, False]


def test_an_error_that_waits_for_the_exchange_is_saved(told: list[dict[str, Any]]) -> None:
    said, undone = alike(told, a_failure_that_was_saved)
    assert said.startswith("GradientError: rank 1: expected gradients of magnitude")
    assert undone


def test_a_group_may_be_added_between_two_exchanges(told: list[dict[str, Any]]) -> None:
    (mine, moved), (theirs, _) = (each["a_group_added_between_exchanges"] for each in told)
    equal = [one == other for one, other in zip(mine, theirs, strict=True)]
    assert equal == [False, True, False, False, True]
    assert moved


def test_a_layer_that_is_frozen_later_rests_from_the_next_exchange_on(
    told: list[dict[str, Any]],
) -> None:
    moved, _, again = alike(told, a_layer_frozen_later)
    assert moved == [False, False]
    assert again


def test_a_layer_moves_if_any_rank_has_a_gradient_of_it_and_decays_only_then(
    told: list[dict[str, Any]],
) -> None:
    _, moved, lone = alike(told, a_layer_without_gradients_on_one_rank)
    assert moved
    assert lone


def test_a_converted_model_is_refused_at_the_exchange_with_both_dtypes(
    told: list[dict[str, Any]],
) -> None:
    *made, said = alike(told, a_model_converted_on_all)
    assert made == ["made"] * (H - 1)
    assert said.startswith(
        "SettingsError: rank 0: expected 0.weight to stay torch.float32, as this optimizer has met "
        "it, got torch.bfloat16: convert a model before you make its optimizer"
    )


def test_ranks_that_send_the_same_are_warned_once(told: list[dict[str, Any]]) -> None:
    (warning,), none = alike(told, the_same_samples_on_all)
    assert warning.startswith("all ranks sent the same movements")
    assert "DistributedDataParallel" in warning
    assert none == []
