"""A training that goes on from what was saved, after any step, is the one that was not stopped."""

import copy
import io
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.exact.optimizer import DeMo
from tests.node.exact.optimizer.pair import digest
from tests.node.exact.optimizer.reachable import reachable

Parameter = torch.nn.Parameter

STEPS = 14

SHAPES = {"one": (64, 70), "bias": (7,), "two": (64, 64), "gain": (), "table": (65, 8)}

PASSED = {
    "DeMo._steps": "counts exchanges since the state was loaded, to compare ranks then",
    "DeMo._failed": "the error itself; its sentence is in the groups",
    "DeMo._likeness": "warns once in a process",
    "DeMo._room_bytes": "the size of a collective",
    "DeMo.found_inf": "a loss scaler's word on one step",
    "dict['differentiable']": "a default of torch's, which its load notes",
    "DemoMember._line": "gradients of one step",
    "LocalMember._line": "gradients of one step",
    "DemoMember._magnitude": "gradients of one step",
    "LocalMember._magnitude": "gradients of one step",
    "Muon.param_groups": "set anew from the groups in every step",
    "AdamW.param_groups": "set anew from the groups in every step",
}
"""What a saved state need not hold. A field that is not named here, and that a load does not bring
back, fails the test."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Settings of a training."""

    local_steps: int
    dtype: torch.dtype = torch.float32
    settings: tuple[tuple[str, Any], ...] = (("weight_decay", 0.1),)


KINDS = [
    Kind(5),
    Kind(3, settings=(("top_k", 20),)),
    Kind(1),
    Kind(0),
    Kind(0, torch.bfloat16, (("value_bits", 2),)),
    Kind(0, torch.float64),
]


class Life:
    """A training in which every step is a function of a seed and its number: parameters without
    gradients, overflows, a layer that is frozen and freed, rates and momenta by a schedule.
    """

    def __init__(self, kind: Kind, seed: int) -> None:
        self.kind, self.seed, self.made = kind, seed, 0
        generator = torch.Generator().manual_seed(0)
        self.params = {
            name: Parameter(torch.randn(shape, generator=generator).to(kind.dtype))
            for name, shape in SHAPES.items()
        }
        named = list(self.params.items())
        groups = [{"params": named[:4]}, {"params": named[4:], "inner": "adamw"}]
        self.optimizer = DeMo(groups, 0.01, local_steps=kind.local_steps, **dict(kind.settings))

    def step(self) -> str:
        drawn = torch.Generator().manual_seed(1000 * self.seed + self.made)
        for name, parameter in self.params.items():
            gradient = torch.randn(parameter.shape, generator=drawn).to(parameter.dtype)
            parameter.grad = gradient if torch.rand((), generator=drawn) < 0.7 else None
            if name == "two" and self.made in range(4, 9):
                parameter.requires_grad_(False).grad = None
            else:
                parameter.requires_grad_(True)
        self.optimizer.found_inf = torch.rand((), generator=drawn) < 0.1  # type: ignore[attr-defined]
        for group in self.optimizer.param_groups:
            group["lr"] = 0.01 + 0.001 * self.made
            if self.kind.local_steps:
                group["momentum"] = 0.85 + 0.01 * (self.made % 8)
        self.optimizer.step()
        self.made += 1
        return digest([*self.params.values()])

    def saved(self) -> dict[str, Any]:
        return {
            "params": {name: each.detach() for name, each in self.params.items()},
            "optimizer": self.optimizer.state_dict(),
        }

    def restored(self, saved: dict[str, Any]) -> "Life":
        other = Life(self.kind, self.seed)
        for name, each in other.params.items():
            each.data.copy_(saved["params"][name])
        other.optimizer.load_state_dict(saved["optimizer"])
        other.made = self.made
        return other


def through_a_file(life: Life) -> Life:
    file = io.BytesIO()
    torch.save(life.saved(), file)
    file.seek(0)
    return life.restored(torch.load(file, weights_only=True))


def through_a_copied_state(life: Life) -> Life:
    return life.restored(copy.deepcopy(life.saved()))


def copied_whole(life: Life) -> Life:
    return copy.deepcopy(life)


def pickled_whole(life: Life) -> Life:
    other = copy.copy(life)
    other.params, other.optimizer = pickle.loads(pickle.dumps((life.params, life.optimizer)))
    return other


def rolled_back(life: Life) -> Life:
    """By its own older state, into the same optimizer."""
    saved, made = copy.deepcopy(life.saved()), life.made
    for _ in range(min(3, STEPS - made)):
        life.step()
    life.optimizer.load_state_dict(saved["optimizer"])
    for name, each in life.params.items():
        each.data.copy_(saved["params"][name])
    life.made = made
    return life


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Threads gain nothing for parameters of this size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


WAYS = [through_a_file, through_a_copied_state, copied_whole, pickled_whole, rolled_back]


@settings(max_examples=30, derandomize=True)
@given(
    kind=st.sampled_from(KINDS),
    seed=st.integers(0, 5),
    stop=st.integers(0, STEPS - 2),
    way=st.sampled_from(WAYS),
)
def test_a_training_goes_on_from_any_step_as_if_it_had_not_stopped(
    kind: Kind, seed: int, stop: int, way: Callable[[Life], Life]
) -> None:
    whole, stopped = Life(kind, seed), Life(kind, seed)
    for _ in range(stop):
        whole.step()
        stopped.step()
    resumed = way(stopped)
    for _ in range(stop, STEPS - 1):
        assert resumed.step() == whole.step()


@settings(max_examples=20, derandomize=True)
@given(kind=st.sampled_from(KINDS), seed=st.integers(0, 5), stop=st.integers(1, STEPS - 2))
def test_a_loaded_optimizer_holds_all_that_the_saved_one_held(
    kind: Kind, seed: int, stop: int
) -> None:
    life = Life(kind, seed)
    for _ in range(stop):
        life.step()
    loaded = through_a_file(life)
    assert reachable(loaded.saved(), {}) == reachable(life.saved(), {})
    for each in (life, loaded):  # which makes the groups of what was loaded
        with torch.no_grad():
            each.optimizer._placement.look(None)
    assert held(loaded.optimizer) == held(life.optimizer)


def held(optimizer: DeMo) -> dict[str, str]:
    return reachable(optimizer, PASSED)
