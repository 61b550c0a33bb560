"""Numbers become bfloat16 at random, and stay what they were on average."""

import pytest
import torch

from node.exact import rounding
from node.exact.rounding import Rounding


def rounded(exact: torch.Tensor, seed: int = 0) -> torch.Tensor:
    found = torch.empty(exact.shape, dtype=torch.bfloat16)
    Rounding("cpu", seed).into(found, exact.clone())
    return found


@pytest.mark.parametrize("size", [1.0, -3e-3, 7e8, 1e-40])
def test_a_number_goes_up_or_down_by_how_near_it_is(size: float) -> None:
    exact = torch.full((50_000,), size, dtype=torch.float32)
    exact.view(torch.int32).bitwise_and_(-65536).add_(0x4000)
    below = exact.view(torch.int32).bitwise_and(-65536).view(torch.float32)
    above = (below.view(torch.int32) + 0x10000).view(torch.float32)
    found = rounded(exact).float()
    assert ((found == below) | (found == above)).all()
    assert float((found == above).float().mean()) == pytest.approx(0.25, abs=0.01)


def test_what_bfloat16_has_stays() -> None:
    exact = torch.tensor([0.0, -0.0, 1.0, -1.5, float("inf"), -float("inf"), 3.3895e38])
    exact = exact.bfloat16().float().repeat(1000)
    assert torch.equal(rounded(exact).float().view(torch.int32), exact.view(torch.int32))


def test_one_seed_rounds_alike_and_two_do_not() -> None:
    exact = torch.randn(7, 13)
    assert torch.equal(rounded(exact, 3), rounded(exact, 3))
    assert not torch.equal(rounded(exact, 3), rounded(exact, 4))


def test_float32_is_not_rounded() -> None:
    exact = torch.randn(5)
    target = torch.empty(5)
    Rounding("cpu").into(target, exact)
    assert torch.equal(target, exact)


def test_the_bits_of_a_row_do_not_depend_on_the_rows_beside_it() -> None:
    exact, numbers = torch.randn(6, 8, 8), torch.tensor([0, 1, 4, 5, 9, 70])
    whole = torch.empty(exact.shape, dtype=torch.bfloat16)
    Rounding("cpu", 3).into(whole, exact.clone(), "a", rows=numbers)
    part = torch.empty(2, 8, 8, dtype=torch.bfloat16)
    Rounding("cpu", 3).into(part, exact[3:5].clone(), "a", rows=numbers[3:5])
    assert torch.equal(part, whole[3:5])


def test_what_has_another_name_has_other_bits_that_are_unlike() -> None:
    exact = torch.full((100_000,), 1 + 2**-9)
    ups = []
    for name in ("a", "b"):
        found = torch.empty(exact.shape, dtype=torch.bfloat16)
        Rounding("cpu", 3).into(found, exact.clone(), name, 1)
        ups.append((found > 1).double())
    both = torch.stack([*ups, ups[0].roll(1), ups[0].roll(4)])
    assert (torch.corrcoef(both) - torch.eye(4)).abs().max() < 0.02


@pytest.mark.parametrize("is_card", [False, True])
def test_several_that_have_one_name_are_rounded_unlike_and_at_random(
    monkeypatch: pytest.MonkeyPatch, is_card: bool
) -> None:
    monkeypatch.setattr(rounding, "is_accelerator", lambda _: is_card)
    found = [torch.empty(50_000, dtype=torch.bfloat16) for _ in range(2)]
    whole = torch.empty(3)
    for seed in (3, 3):
        exact = [torch.full((50_000,), 1 + 2**-9) for _ in found]
        before = [each.clone() for each in found]
        pairs = [(found[0], exact[0]), (whole, torch.arange(3.0)), (found[1], exact[1])]
        Rounding("cpu", seed).into_each(pairs, "a", 1)
    assert all(torch.equal(each, was) for each, was in zip(found, before, strict=True))
    assert torch.equal(whole, torch.arange(3.0))
    ups = torch.stack([(each > 1).double() for each in found])
    assert ups.mean(1).tolist() == pytest.approx([0.25, 0.25], abs=0.01)
    assert abs(torch.corrcoef(ups)[0, 1]) < 0.02


def test_small_tensors_are_rounded_at_places_that_their_names_give() -> None:
    source = Rounding("cpu", 3)

    def rounded_at(names: list[str]) -> dict[str, torch.Tensor]:
        places = source.places(dict.fromkeys(names, 500))
        found = [torch.empty(len(places), dtype=torch.bfloat16) for _ in range(3)]
        exact = [torch.full((len(places),), 1 + 2**-9) for _ in found]
        source.into_at(list(zip(found, exact, strict=True)), places, "step", 1)
        return dict(zip(names, torch.stack(found, 1).split(500), strict=True))

    many, few = rounded_at(["a", "b", "c"]), rounded_at(["c", "a"])
    assert torch.equal(many["a"], few["a"])
    assert torch.equal(many["c"], few["c"])
    ups = torch.cat([(many[name] > 1).double() for name in "abc"], 1).T
    assert float(ups.mean()) == pytest.approx(0.25, abs=0.02)
    assert (torch.corrcoef(ups) - torch.eye(9)).abs().max() < 0.25
