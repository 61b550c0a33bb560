"""The study of bfloat16 rounds what it says."""

import torch

from node.demo.chunks import ChunkLayout
from node.demo.engine import DemoSettings
from tests.benchmarks.bfloat16 import RoundedEngine, round_


def values() -> torch.Tensor:
    return torch.randn(40, 1000, generator=torch.Generator().manual_seed(0))


def test_to_the_nearest_is_what_torch_does() -> None:
    found = values()
    round_(found, None)
    assert torch.equal(found, values().bfloat16().float())


def test_at_random_gives_one_of_two_neighbours_and_keeps_the_mean() -> None:
    found = values()[0].expand(4000, -1).contiguous()
    round_(found, torch.Generator().manual_seed(1))
    assert torch.equal(found, found.bfloat16().float())
    given = values()[0]
    assert ((found - given).abs() < given.abs() / 128).all()
    assert ((found.mean(0) - given).abs() < given.abs() / 128 / 15).all()  # five deviations


def test_fewer_low_bits_change_less() -> None:
    found = values()
    round_(found, torch.Generator().manual_seed(1), 4)
    change = (found - values()).abs() / values().abs()
    assert 0 < change.max() < 2.0**-19


def test_the_momentum_is_rounded_after_each_accumulation() -> None:
    layout = ChunkLayout.from_shapes({"w": (130, 64)})
    engine = RoundedEngine(layout, DemoSettings(), "cpu")
    engine.random = torch.Generator().manual_seed(2)
    for _ in range(2):
        engine.accumulate({"w": torch.randn(130, 64)})
        assert engine.momentum.any()
        assert torch.equal(engine.momentum, engine.momentum.bfloat16().float())
