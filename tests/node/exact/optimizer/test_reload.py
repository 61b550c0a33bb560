"""States that are loaded for other parameters: matched by name, or refused by name at the load."""

import copy
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from node.exact.optimizer import DeMo
from node.exact.optimizer.member import line_of_chunks
from protocol.errors import SettingsError
from tests.node.exact.optimizer.pair import Training, digest

H = 3


def trained(steps: int, *, named: bool, **settings: Any) -> Training:
    mine = Training(0, named=named, **{"local_steps": H, "top_k": 64} | settings)
    for _ in range(steps):
        mine.step()
    return mine


def reloaded(whole: Training, params: Any, local_steps: int = H) -> DeMo:
    """Another optimizer of a copy of the model, with the state; `params` takes the model."""
    whole.model = copy.deepcopy(whole.model)
    optimizer = DeMo(params(whole.model), local_steps=local_steps, top_k=64)
    optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    return optimizer


@pytest.mark.parametrize("local_steps", [0, H])
def test_named_parameters_in_another_order_have_their_own_state(local_steps: int) -> None:
    whole = trained(4, named=True, local_steps=local_steps)
    before = whole.optimizer
    optimizer = reloaded(whole, lambda m: reversed([*m.named_parameters()]), local_steps)
    assert optimizer.param_groups[0]["param_names"][0] == "1.bias"
    names = before.param_groups[0]["param_names"]
    old = dict(zip(names, before.param_groups[0]["params"], strict=True))
    optimizer.step()  # without gradients: places what was loaded
    for name, parameter in whole.model.named_parameters():
        mine, theirs = optimizer.state[parameter], before.state[old[name]]
        for key in theirs.keys() - {"place", "line", "moved"}:
            assert torch.equal(mine[key], theirs[key]), (name, key)
    line, there = (
        line_of_chunks(next(state["line"] for state in each.state.values() if "line" in state))
        for each in (optimizer, before)
    )
    there = torch.cat([there[64:128], there[:64]])
    torch.testing.assert_close(line[:128], there, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("flat", [False, True])
def test_a_state_through_dcp_between_two_exchanges_makes_equal_bits(flat: bool) -> None:
    options = StateDictOptions(flatten_optimizer_state_dict=flat)
    whole = trained(H + 1, named=False)
    saved = copy.deepcopy(get_optimizer_state_dict(whole.model, whole.optimizer, options=options))
    other = trained(0, named=False)
    other.model.load_state_dict(whole.model.state_dict())
    other._samples.set_state(whole._samples.get_state())
    set_optimizer_state_dict(other.model, other.optimizer, saved, options=options)
    for _ in range(2 * H):
        whole.step()
        other.step()
        assert whole.digest() == other.digest()


def test_groups_in_another_order_are_matched_by_the_names_in_them() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    groups = [
        {"params": [*model[place].named_parameters(prefix=str(place))], "lr": 0.01 * (1 + place)}
        for place in range(2)
    ]
    first, second = (DeMo(copy.deepcopy(each), local_steps=H) for each in (groups, groups[::-1]))
    second.load_state_dict(first.state_dict())
    assert [group["lr"] for group in second.param_groups] == [0.02, 0.01]
    assert second.param_groups[0]["param_names"] == ["1.weight", "1.bias"]


def test_names_of_another_model_are_refused_and_may_be_left_out() -> None:
    mine = trained(1, named=True)
    wrapped = torch.nn.ModuleDict({"module": copy.deepcopy(mine.model)})
    other = DeMo(wrapped.named_parameters(), local_steps=H, top_k=64)
    saved = mine.optimizer.state_dict()
    with pytest.raises(
        SettingsError, match=r"a state of module\.0\.weight, got none, and 0.weight"
    ):
        other.load_state_dict(saved)
    for group in saved["param_groups"]:
        del group["param_names"]
    other.load_state_dict(saved)
    assert other.param_groups[0]["param_names"][0] == "module.0.weight"


def test_names_that_are_grouped_in_another_way_are_refused() -> None:
    mine = trained(1, named=True)
    weights, biases = ([*mine.model.named_parameters()][first::2] for first in (0, 1))
    groups = [{"params": weights}, {"params": biases}]
    with pytest.raises(SettingsError, match=r"0\.weight in a group of 2 .* at odds over 0\.bias"):
        DeMo(groups, local_steps=H).load_state_dict(mine.optimizer.state_dict())


@pytest.mark.parametrize("local_steps", [0, H])
def test_another_order_without_names_is_refused_at_the_load_with_the_place(
    local_steps: int,
) -> None:
    mine = trained(4, named=False, local_steps=local_steps)
    before = mine.digest()
    with pytest.raises(
        SettingsError, match=r"of parameter 0 with shape \(64,\), got one with shape \(64, 64\)"
    ):
        reloaded(mine, lambda m: reversed([*m.parameters()]), local_steps)
    assert mine.digest() == before


@pytest.mark.parametrize("local_steps", [0, H])
def test_a_vocabulary_of_another_size_is_refused_at_the_load_with_its_name(
    local_steps: int,
) -> None:
    small, large = (torch.nn.Embedding(rows, 64) for rows in (100, 110))  # as many chunks
    optimizers = [
        DeMo(each.named_parameters(), local_steps=local_steps, top_k=64) for each in (small, large)
    ]
    small.weight.grad = torch.ones(100, 64)
    optimizers[0].step()
    kept = copy.deepcopy(optimizers[1].state_dict())
    with pytest.raises(
        SettingsError,
        match=r"state of weight with shape \(110, 64\), got one with shape \(100, 64\)",
    ):
        optimizers[1].load_state_dict(optimizers[0].state_dict())
    assert optimizers[1].state_dict() == kept


@pytest.mark.parametrize(
    ("version", "kind"), [(None, "an earlier"), (1, "an earlier"), (9, "a later")]
)
def test_a_state_of_another_version_is_refused_as_that(version: int | None, kind: str) -> None:
    mine = trained(4, named=True)
    saved = copy.deepcopy(mine.optimizer.state_dict())
    for group in saved["param_groups"]:
        group["version"] = version
        if version is None:
            del group["version"]
    with pytest.raises(SettingsError, match=f"of version 2, got one of version .*{kind} release"):
        mine.optimizer.load_state_dict(saved)


def test_a_state_without_a_residual_begins_with_none() -> None:
    mine = trained(2 * H, named=True)
    saved = copy.deepcopy(mine.optimizer.state_dict())
    for state in saved["state"].values():
        state.pop("momentum", None)
        state.pop("line", None)
    mine.optimizer.load_state_dict(saved)
    mine.optimizer.zero_grad()
    mine.optimizer.step()
    found = [each.get("momentum") for each in mine.optimizer.state.values()]
    assert [each is None or not each.any() for each in found] == [True] * 4
    assert sum(each is not None for each in found) == 2


@pytest.mark.parametrize("kind", [set, frozenset])
def test_parameters_without_an_order_are_refused(kind: type) -> None:
    model = torch.nn.Linear(64, 64)
    for given in (kind(model.parameters()), [{"params": kind(model.parameters())}]):
        with pytest.raises(TypeError, match=r"got a (frozen)?set: give a list, or model\.named"):
            DeMo(given)


def test_a_state_that_does_not_fit_leaves_the_training_as_it_was() -> None:
    mine, twin = trained(4, named=True), trained(4, named=True)
    with pytest.raises(SettingsError):
        mine.optimizer.load_state_dict(trained(1, named=True, local_steps=0).optimizer.state_dict())
    for _ in range(H):
        mine.step()
        twin.step()
    assert digest([*mine.model.parameters()]) == digest([*twin.model.parameters()])
