"""The optimizer in one process, where it is AdamW, and what it refuses."""

import copy

import pytest
import torch

from lockstep import GossipAdam


def parameters() -> list[torch.nn.Parameter]:
    chance = torch.Generator().manual_seed(0)
    return [
        torch.nn.Parameter(torch.randn(shape, generator=chance)) for shape in ((5, 3), (5,), (2, 5))
    ]


def gradients(params: list[torch.nn.Parameter], step: int) -> None:
    chance = torch.Generator().manual_seed(1 + step)
    for parameter in params:
        parameter.grad = torch.randn(parameter.shape, generator=chance)


def test_a_process_alone_trains_with_adamw() -> None:
    ours, theirs = parameters(), parameters()
    gossip = GossipAdam(ours, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    adam = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.95), weight_decay=0.1)
    for step in range(20):
        for params, optimizer in ((ours, gossip), (theirs, adam)):
            gradients(params, step)
            optimizer.step()
    gossip.finish()
    for first, second in zip(ours, theirs, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=2e-6)
    assert gossip.distance() == 0
    assert str(gossip.mixing).startswith("one-peer-exponential, 1 members")


def test_a_parameter_without_a_gradient_stands_still() -> None:
    params = parameters()
    optimizer = GossipAdam(params, weight_decay=0.1)
    gradients(params, 0)
    params[1].grad = None
    before = params[1].detach().clone()
    optimizer.step()
    assert torch.equal(params[1], before)


def test_groups_have_settings_of_their_own_and_schedulers_work() -> None:
    params = parameters()
    optimizer = GossipAdam([{"params": params[:1], "accumulate": 2}, {"params": params[1:]}], lr=1)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.0)
    before = [parameter.detach().clone() for parameter in params]
    gradients(params, 0)
    optimizer.step()
    schedule.step()
    assert all(torch.equal(a, b) for a, b in zip(before, params, strict=True))  # the rate is 0
    assert optimizer.state[params[0]]["gradients"] == 1
    assert optimizer.state[params[1]]["windows"] == 1


def test_a_saved_state_goes_on_as_if_nothing_had_happened() -> None:
    ours, theirs = parameters(), parameters()
    first = GossipAdam(ours, accumulate=3)
    for step in range(4):
        gradients(ours, step)
        first.step()
    second = GossipAdam(theirs, accumulate=3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for parameter, other in zip(theirs, ours, strict=True):
        parameter.data.copy_(other.data)
    for params, optimizer in ((ours, first), (theirs, second)):
        gradients(params, 9)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert second.param_groups[0]["round"] == 5


def test_loading_keeps_the_process_group_and_copies_keep_the_settings() -> None:
    params = parameters()
    optimizer = GossipAdam(params, wire="int8", topology="ring")
    gradients(params, 0)
    optimizer.step()
    copied = copy.deepcopy(optimizer)
    copied.step()
    assert str(copied.mixing).startswith("ring")
    group = object()
    optimizer._process_group = group  # type: ignore[assignment]
    optimizer.load_state_dict(copied.state_dict())
    assert optimizer._process_group is group


def test_a_closure_gives_the_loss() -> None:
    params = parameters()
    optimizer = GossipAdam(params)

    def closure() -> float:
        gradients(params, 0)
        return 2.5

    assert optimizer.step(closure) == 2.5


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": -1.0}, "finite lr"),
        ({"betas": (0.9, 1.0)}, "two betas"),
        ({"accumulate": 0}, "accumulate of 1"),
        ({"topology": "star"}, "expected one of ring"),
        ({"wire": "int4"}, "wire of float32, float16, int8, got 'int4'"),
        ({"critical": -1.0}, "finite critical"),
        ({"group_size": 0}, "group_size"),
    ],
)
def test_settings_outside_their_bounds_are_named(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GossipAdam(parameters(), **given)  # type: ignore[arg-type]


def test_parameters_of_another_dtype_are_refused() -> None:
    with pytest.raises(ValueError, match=r"float32 parameters, got torch\.bfloat16"):
        GossipAdam([torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))])
