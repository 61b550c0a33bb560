"""Whatever parts two ranks in a loop of somebody's own: both stay equal, or both say why."""

import re
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.node.exact.every_step import every_step
from tests.node.exact.optimizer.pair import Story, Training, digest, told_by


def overflow_on_one_rank(rank: int) -> Any:
    """A loss scaler finds an infinite gradient on rank 0 in the second step."""
    mine = Training(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    digests = []
    for step in range(4):
        mine.optimizer.zero_grad()
        scaler.scale(mine.loss()).backward()
        if step == 1 and rank == 0:
            mine.weight.grad[0, 0] = torch.inf  # type: ignore[index]
        scaler.step(mine.optimizer)
        scaler.update()
        digests.append(mine.digest())
    return digests


def overflow_found_by_unscale(rank: int) -> Any:
    """The same, where the user unscales first, as for clipping; `grad` is unscaled then."""
    mine = Training(rank)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    digests = []
    for step in range(3):
        mine.optimizer.zero_grad()
        scaler.scale(mine.loss()).backward()
        if step == 1 and rank == 1:
            mine.weight.grad[0, 0] = torch.nan  # type: ignore[index]
        scaler.unscale_(mine.optimizer)
        torch.nn.utils.clip_grad_norm_(mine.model.parameters(), 1.0)
        scaler.step(mine.optimizer)
        scaler.update()
        digests.append(mine.digest())
    return digests


def rates_by_plateau(rank: int) -> Any:
    mine = Training(rank)
    schedule = torch.optim.lr_scheduler.ReduceLROnPlateau(mine.optimizer, patience=0)
    for step in range(4):
        mine.backward()
        said = mine.refused()
        if said != "made":
            return step, said, mine.digest()
        schedule.step(1.0 if rank == 0 else 1 / (step + 1))
    return None


def settings_that_part(rank: int) -> Any:
    changed: dict[str, Any] = {
        "lr": 0.005,
        "weight_decay": 0.1,
        "momentum_decay": 0.9,
        "top_k": 8,
        "value_bits": 2,
    }
    found = {}
    for name, value in changed.items():
        mine = Training(rank)
        mine.step()
        if rank == 1:
            mine.group[name] = value
        mine.backward()
        found[name] = mine.refused()
    mine = Training(rank, check_every=1 + rank)
    mine.backward()
    found["check_every"] = mine.refused()
    return found


def a_setting_out_of_bounds_on_one_rank(rank: int) -> Any:
    mine = Training(rank)
    mine.step()
    if rank == 1:
        mine.group["lr"] = torch.nan
    mine.backward()
    said = mine.refused()
    mine.group["lr"] = 0.01
    mine.step()
    return said, mine.digest()


def a_flipped_bit(rank: int) -> Any:
    mine = Training(rank, named=True)
    mine.step()
    if rank == 1:
        mine.weight.data[0, 0] += 1e-3
    mine.backward()
    return [mine.refused(), mine.refused()]


def a_flipped_bit_looked_for_every_third_step(rank: int) -> Any:
    mine = Training(rank, check_every=3)
    mine.step()
    if rank == 1:
        mine.weight.data[0, 0] += 1e-3
    found = []
    for _ in range(3):
        mine.backward()
        found.append(mine.refused())
    return found


def no_gradients_on_one_rank(rank: int) -> Any:
    mine = Training(rank)
    for step in range(4):
        mine.backward()
        if rank == 1 and step >= 2:
            mine.optimizer.zero_grad()
        mine.optimizer.step()
    return mine.digest()


def a_group_more_on_one_rank(rank: int) -> Any:
    found = []
    for steps in (0, 1):
        mine = Training(rank)
        for _ in range(steps):
            mine.step()
        if rank == 0:
            mine.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(64, 64))]})
        found.append(mine.refused())
    return found


def parameters_that_differ_in_kind(rank: int) -> Any:
    found = []
    shapes = [(64, 64), (64, 64 + rank)]
    for kind in ("shape", "dtype", "frozen", "order"):
        params = [torch.nn.Parameter(torch.ones(64, 65)), torch.nn.Parameter(torch.ones(65, 64))]
        match kind:
            case "shape":
                params[1] = torch.nn.Parameter(torch.ones(shapes[rank]))
            case "dtype" if rank:
                params[1] = torch.nn.Parameter(torch.ones(65, 64, dtype=torch.bfloat16))
            case "frozen":
                params[1].requires_grad_(rank == 0)
            case "order" if rank:
                params.reverse()
        try:
            every_step(params, lr=0.01).step()
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
    return found


def a_state_loaded_on_one_rank(rank: int) -> Any:
    mine = Training(rank)
    mine.step()
    if rank == 1:
        mine.optimizer.load_state_dict(mine.optimizer.state_dict())
    mine.backward()
    return mine.refused()


def two_optimizers_in_another_order(rank: int) -> Any:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(2)]
    optimizers = [every_step([each], lr=0.01) for each in params]
    for each in params:
        each.grad = torch.ones(64, 64)
    try:
        optimizers[rank].step()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def not_a_number_on_one_rank(rank: int) -> Any:
    mine = Training(rank, named=True)
    mine.step()
    momentum = mine.optimizer.state[mine.weight]["momentum"].clone()
    mine.backward()
    if rank == 0:
        mine.weight.grad[0, 0] = torch.nan  # type: ignore[index]
    said = mine.refused()
    kept = torch.equal(momentum, mine.optimizer.state[mine.weight]["momentum"])
    mine.step()
    return said, kept, mine.digest()


def a_closure_that_fails_on_one_rank(rank: int) -> Any:
    mine = Training(rank)

    def closure() -> float:
        if rank == 1:
            raise RuntimeError("out of batches")
        mine.backward()
        return 0.0

    try:
        mine.optimizer.step(closure)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "made"


def a_rank_that_fails_within_the_step(rank: int) -> Any:
    mine = Training(rank)
    mine.step()
    if rank == 1:  # the engine fails after all ranks have agreed
        member = mine.optimizer._placement.members[0]
        member.engine.extract = None  # type: ignore[assignment, method-assign]
    mine.backward()
    return mine.refused()


def gradients_that_add_up(rank: int) -> Any:
    """Two backward passes for each step, and `grad` is never reset."""
    mine = Training(rank)
    given = []
    for _ in range(2):
        for _ in range(2):
            mine.loss().backward()
        before = digest([each.grad for each in mine.model.parameters() if each.grad is not None])
        mine.optimizer.step()
        after = digest([each.grad for each in mine.model.parameters() if each.grad is not None])
        given.append(before == after)
    return given, mine.digest()


def a_decay_by_schedule(rank: int) -> Any:
    mine = Training(rank)
    for step in range(3):
        mine.group["weight_decay"] = 0.1 * step
        mine.step()
    return mine.digest()


def unfrozen_on_both(rank: int) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
    model[0].requires_grad_(False)
    optimizer = every_step(model.parameters(), lr=0.01)
    samples = torch.Generator().manual_seed(rank)
    for step in range(4):
        if step == 2:
            model[0].requires_grad_(True)
        optimizer.zero_grad()
        model(torch.randn(4, 64, generator=samples)).square().mean().backward()
        optimizer.step()
    return digest(list(model.parameters()))


def low_precision(rank: int) -> Any:
    torch.manual_seed(0)
    model = torch.nn.Linear(96, 128).bfloat16()
    optimizer = every_step(model.parameters(), lr=1e-4, check_every=1)
    samples = torch.Generator().manual_seed(rank)
    start = model.weight.detach().clone()
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 96, generator=samples).bfloat16()).square().mean().backward()
        optimizer.step()
    moved = not torch.equal(start, model.weight)
    if rank == 1:
        optimizer.state[model.weight]["master"][0, 0] += 1e-6
    try:
        optimizer.step()
    except Exception as error:
        return moved, f"{type(error).__name__}: {error}"
    return None


def ranks_of_a_part(rank: int) -> Any:
    alone = [dist.new_group([other]) for other in range(2)]
    mine = Training(rank, process_group=alone[rank])
    mine.step()
    mine.optimizer.load_state_dict(mine.optimizer.state_dict())
    mine.step()  # still with itself alone, on whatever the other rank does
    try:
        Training(rank, process_group=alone[1 - rank])
    except ValueError as error:
        return mine.digest(), str(error)
    return None


STORIES: list[Story] = [
    overflow_on_one_rank,
    overflow_found_by_unscale,
    rates_by_plateau,
    settings_that_part,
    a_setting_out_of_bounds_on_one_rank,
    a_flipped_bit,
    a_flipped_bit_looked_for_every_third_step,
    no_gradients_on_one_rank,
    a_group_more_on_one_rank,
    parameters_that_differ_in_kind,
    a_state_loaded_on_one_rank,
    two_optimizers_in_another_order,
    not_a_number_on_one_rank,
    a_closure_that_fails_on_one_rank,
    a_rank_that_fails_within_the_step,
    gradients_that_add_up,
    a_decay_by_schedule,
    unfrozen_on_both,
    low_precision,
    ranks_of_a_part,
]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return told_by(tmp_path_factory.mktemp("ranks"), STORIES)


def alike(told: list[dict[str, Any]], story: Story) -> Any:
    """What both ranks tell of a story, which must be the same."""
    first, second = (each[story.__name__] for each in told)
    assert first == second
    return first


@pytest.mark.parametrize("story", [overflow_on_one_rank, overflow_found_by_unscale])
def test_an_overflow_on_one_rank_skips_the_step_on_all(
    told: list[dict[str, Any]], story: Story
) -> None:
    first, skipped, third, *_ = alike(told, story)
    assert first == skipped != third


def test_a_rate_that_a_rank_schedules_by_itself_is_named(told: list[dict[str, Any]]) -> None:
    step, said, _ = alike(told, rates_by_plateau)
    assert step == 2
    assert said == (
        "DivergedError: expected equal settings and groups on all ranks, but lr of group 0 is 0.01 "
        "on rank 1 where rank 0 has 0.001"
    )


def test_any_setting_that_parts_is_named_in_the_next_step(told: list[dict[str, Any]]) -> None:
    found = alike(told, settings_that_part)
    assert len(found) == 6
    for name, said in found.items():
        assert said.startswith("DivergedError: expected equal settings and groups on all ranks")
        assert re.search(rf"but {name}( of group 0)? is .+ on rank 1 where rank 0 has ", said)


def test_a_setting_out_of_bounds_on_one_rank_stops_all_and_nothing_moves(
    told: list[dict[str, Any]],
) -> None:
    said, _ = alike(told, a_setting_out_of_bounds_on_one_rank)
    assert said == "SettingsError: rank 1: expected a finite lr of at least 0, got nan"


def test_a_parameter_changed_on_one_rank_is_named_in_the_next_step(
    told: list[dict[str, Any]],
) -> None:
    for said in alike(told, a_flipped_bit):
        assert said.startswith("DivergedError: expected equal parameters on all ranks, but ")
        assert "parameter 0 of group 0 (0.weight) is " in said
        assert "on rank 1 where rank 0 has" in said
        assert "something other than this optimizer has changed it" in said


def test_parameters_are_compared_every_so_many_steps_as_the_user_chooses(
    told: list[dict[str, Any]],
) -> None:
    *made, said = alike(told, a_flipped_bit_looked_for_every_third_step)
    assert made == ["made", "made"]
    assert said.startswith("DivergedError: expected equal parameters on all ranks")


@pytest.mark.parametrize(
    "story",
    [no_gradients_on_one_rank, a_decay_by_schedule, unfrozen_on_both],
)
def test_ranks_stay_equal(told: list[dict[str, Any]], story: Story) -> None:
    alike(told, story)


def test_a_group_that_only_one_rank_has_is_named(told: list[dict[str, Any]]) -> None:
    for said in alike(told, a_group_more_on_one_rank):
        assert said.startswith("DivergedError: expected equal settings and groups on all ranks")
        assert said.endswith("but group 1 is missing on rank 1 where rank 0 has a group of 1")


def test_parameters_of_another_kind_on_one_rank_are_named(told: list[dict[str, Any]]) -> None:
    shape, dtype, frozen, order = alike(told, parameters_that_differ_in_kind)
    assert "is torch.float32 (64, 65) on rank 1 where rank 0 has torch.float32 (64, 64)" in shape
    assert "is torch.bfloat16 (65, 64) on rank 1 where rank 0 has torch.float32 (65, 64)" in dtype
    assert "parameter 1 of group 0 is torch.float32 (65, 64), frozen on rank 1" in frozen
    assert "parameter 0 of group 0 is torch.float32 (65, 64) on rank 1" in order


def test_a_state_loaded_on_one_rank_alone_is_named(told: list[dict[str, Any]]) -> None:
    said = alike(told, a_state_loaded_on_one_rank)
    assert "steps since the optimizer was made, loaded or given a group is 0 on rank 1" in said


def test_optimizers_that_step_in_another_order_are_told(told: list[dict[str, Any]]) -> None:
    said = alike(told, two_optimizers_in_another_order)
    assert said.startswith("DivergedError: expected equal parameters on all ranks")


def test_a_gradient_that_is_not_a_number_is_named_on_all_and_no_state_changes(
    told: list[dict[str, Any]],
) -> None:
    said, kept, _ = alike(told, not_a_number_on_one_rank)
    assert kept
    assert said == (
        "GradientError: rank 0: expected gradients of magnitude up to 1e+30, got 0.weight with "
        "entries NaN"
    )


@pytest.mark.parametrize(
    ("story", "own"),
    [
        (a_closure_that_fails_on_one_rank, "RuntimeError: out of batches"),
        (a_rank_that_fails_within_the_step, "TypeError: 'NoneType' object is not callable"),
    ],
)
def test_a_rank_that_fails_has_its_own_error_and_the_others_hear_of_it(
    told: list[dict[str, Any]], story: Story, own: str
) -> None:
    first, second = (each[story.__name__] for each in told)
    assert first == f"UnavailableError: expected a step of all ranks, but rank 1: {own}"
    assert second == own


def test_gradients_add_up_as_nothing_changes_them(told: list[dict[str, Any]]) -> None:
    kept, _ = alike(told, gradients_that_add_up)
    assert kept == [True, True]


def test_master_copies_are_equal_on_all_ranks_and_compared(told: list[dict[str, Any]]) -> None:
    moved, said = alike(told, low_precision)
    assert moved
    assert "parameter 0 of group 0 is " in said


def test_a_process_group_stays_that_of_the_optimizer_after_loading(
    told: list[dict[str, Any]],
) -> None:
    (first, refused), (second, also) = (each["ranks_of_a_part"] for each in told)
    assert first != second
    assert refused == also == "expected a process_group with this rank in it, got one without"
