"""Zeros, denormals, tiny and huge floats, NaN and infinities: all backends do the same with them,
and no integer made of one is out of range. Which integer the hardware makes of a NaN or of too
large a float depends on the processor.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from node.exact import dct
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import DemoSettings, Momentum, quantise
from node.exact.engine import Extraction
from node.exact.plain import Plain
from node.exact.top_k import largest, largest_in_groups
from protocol.codec.payload import Coefficients
from protocol.limits import VOTE_SUM_MAX
from tests.node.exact.conftest import MakeBackend, but_plain

LEAST, LEAST_NORMAL = 2.0**-149, 2.0**-126
SCALES_OF_CHUNKS = (
    1e-42,
    1e-38,
    1e-37,
    1e-34,
    1e-30,
    1e-23,
    1e-19,
    1e-15,
    1.0,
    1e15,
    1e19,
    1e25,
    1e30,
)
SINGLE_ENTRIES = (
    LEAST,
    LEAST_NORMAL,
    2.0**-100,
    2.0**-65,
    2.0**-60,
    1.0,
    -1.0,
    2.0**60,
    -(2.0**64),
    2.0**99,
)
RATES = (float(np.float32(0.004)), float(np.float32(0.9996)))

Find = Callable[[Tensor, int], Tensor]


def single_entry(value: float, place: int) -> Tensor:
    return torch.zeros(4096).index_fill(0, torch.tensor(place), value).view(64, 64)


def sane_chunks() -> dict[str, Tensor]:
    """float32 [64, 64] of every size that a momentum can have, by name."""
    generator = torch.Generator().manual_seed(1)
    normal = torch.randn(64, 64, generator=generator)
    signs = normal.sign()
    chunks = {
        "zeros": torch.zeros(64, 64),
        "minus zeros": -torch.zeros(64, 64),
        "least": signs * LEAST,
    }
    chunks |= {f"normal * {scale:g}": normal * scale for scale in SCALES_OF_CHUNKS}
    chunks |= {
        f"one of {value:g}": single_entry(value, 65 * i) for i, value in enumerate(SINGLE_ENTRIES)
    }
    chunks["steep"] = normal * torch.logspace(-44, 30, 64)
    return chunks


def broken_chunks() -> dict[str, Tensor]:
    """float32 [64, 64] that no gradient makes."""
    normal = sane_chunks()["normal * 1"]
    found = {
        str(bad): normal.clone().index_fill_(0, torch.tensor(3), bad)
        for bad in (math.nan, math.inf, -math.inf)
    }
    return found | {
        "largest": torch.full((64, 64), torch.finfo(torch.float32).max),
        "all": torch.full((64, 64), math.nan),
    }


SANE, BROKEN = sane_chunks(), broken_chunks()
ALL = SANE | BROKEN
LAYOUT = ChunkLayout.from_shapes({"m": (64, 64 * len(ALL)), "small": (50,)})


def momentum_of(chunks: dict[str, Tensor]) -> Tensor:
    """float32 [chunks, 64, 64] for LAYOUT, zeros behind the chunks."""
    found = torch.zeros(LAYOUT.chunks, 64, 64)
    found[: len(chunks)] = torch.stack([*chunks.values()])
    return found


def extractions(
    make_backend: MakeBackend, settings: DemoSettings, chunks: dict[str, Tensor]
) -> list[tuple[Momentum, Extraction]]:
    """The plain engine and one with the backend, and what each took."""
    found = []
    for make in (Plain, make_backend):
        engine = Momentum(LAYOUT, settings, "cpu", backend=make(LAYOUT))
        engine.entries.copy_(momentum_of(chunks))
        found.append((engine, engine.extract()))
    return found


def bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(torch.int32)


@but_plain
@pytest.mark.parametrize("value_bits", [1, 2, 4, 8])
def test_chunks_of_any_size_are_extracted_alike_and_values_stay_in_range(
    make_backend: MakeBackend, value_bits: int
) -> None:
    settings = DemoSettings(value_bits=value_bits)
    (plain_engine, plain), (engine, found) = extractions(make_backend, settings, SANE)
    untied = torch.tensor(
        ["normal" in name for name in SANE] + [False] * (LAYOUT.chunks - len(SANE))
    )
    for name in ("indices", "values", "previous"):
        assert torch.equal(getattr(found, name)[untied], getattr(plain, name)[untied]), name
    assert torch.equal(bits(engine.entries)[untied], bits(plain_engine.entries)[untied])
    # Any of equals are taken, but as many of each.
    for name in ("values", "previous"):
        assert torch.equal(
            *(getattr(sent, name).abs().sort(1).values for sent in (found, plain))
        ), name
    assert torch.equal(
        *(each.entries.flatten(1).abs().sort(1).values for each in (engine, plain_engine))
    )
    assert engine.entries.isfinite().all()
    for sent in (plain, found):
        assert ((sent.values != 0) == (sent.previous != 0)).all()
        assert sent.values.abs().max() <= 1 << value_bits - 1
        assert (sent.values.sign() == sent.previous.sign()).all()


@but_plain
def test_extractions_from_nan_and_infinities_are_in_range(
    make_backend: MakeBackend,
) -> None:
    for value_bits in (1, 8):
        for _, sent in extractions(make_backend, DemoSettings(value_bits=value_bits), ALL):
            assert sent.values.abs().max() <= 1 << value_bits - 1
            assert (sent.indices.long().diff(dim=1) > 0).all()


@but_plain
def test_gradients_of_any_size_enter_alike_and_leave_the_momentum_finite(
    monkeypatch: pytest.MonkeyPatch, make_backend: MakeBackend
) -> None:
    monkeypatch.setattr(dct, "bfloat16_is_faster", lambda: False)
    chunks = momentum_of({name: chunk.clamp(-9e29, 9e29) for name, chunk in SANE.items()})
    gradients = {"m": torch.empty(64, 64 * len(ALL)), "small": torch.full((50,), LEAST)}
    LAYOUT.scatter(chunks, gradients)
    plain, found = [], []
    for make, momenta in ((Plain, plain), (make_backend, found)):
        engine = Momentum(LAYOUT, DemoSettings(), "cpu", backend=make(LAYOUT))
        for _ in range(2):
            engine.accumulate(gradients)
            momenta.append(engine.entries.clone())
    for one, other in zip(plain, found, strict=True):
        assert one.isfinite().all()
        sizes = one.double().square().mean((1, 2), keepdim=True).sqrt()
        assert (
            (one.double() - other.double()).abs() <= 1e-4 * sizes + 512 * LEAST
        ).all()  # 64 roundings, twice
    # One product in the one direction, one in the other: the first is exact for a power of two that
    # is no denormal.
    exact = [
        "zeros",
        "minus zeros",
        *(f"one of {value:g}" for value in SINGLE_ENTRIES if abs(value) >= 2.0**-100),
    ]
    places = [[*SANE].index(name) for name in exact]
    assert torch.equal(bits(plain[0][places]), bits(found[0][places]))


@but_plain
def test_parameters_of_any_size_change_bit_for_bit_alike(make_backend: MakeBackend) -> None:
    """By chunks without a vote, with one, and with the largest sum of votes."""
    counts = np.arange(LAYOUT.chunks, dtype=np.uint16) % 3
    places = (
        np.concatenate([[65 * i, 65 * i + 7][:count] for i, count in enumerate(counts)]).astype(
            np.uint16
        )
        % 4096
    )
    values = np.where(np.arange(len(places)) % 2, -1, 1).astype(np.int16)
    votes = [
        Contribution(weight, Coefficients(counts, places, values))
        for weight in (1, VOTE_SUM_MAX - 1)
    ]
    chunks = momentum_of(SANE | {"largest": ALL["largest"]})
    stepped = []
    for make in (Plain, make_backend):
        parameters = {"m": torch.empty(64, 64 * len(ALL)), "small": torch.full((50,), -0.0)}
        LAYOUT.scatter(chunks, parameters)
        apply(LAYOUT, parameters, votes, *RATES, backend=make(LAYOUT))
        stepped.append(parameters)
    plain, found = stepped
    assert all(torch.equal(bits(plain[name]), bits(found[name])) for name in plain)
    assert found["m"].isfinite().all()


def test_quantised_values_of_any_floats_are_in_range() -> None:
    floats = torch.tensor([math.nan, math.inf, -math.inf, 1e38, -9.0, LEAST, 0.0])
    for kept in (
        floats[None],
        floats[1:][None],
        floats[3:][None],
        torch.tensor([[3 * LEAST, -LEAST]]),
    ):
        for value_bits in (1, 2, 4, 8):
            values = quantise(kept, value_bits)
            assert values.abs().max() <= 1 << value_bits - 1
            assert (values.sign() == kept.nan_to_num(0.0).sign()).all()


@pytest.mark.parametrize("find", [largest, largest_in_groups])
@pytest.mark.parametrize("top_k", [1, 32, 300])
def test_the_largest_of_nan_and_infinities_are_distinct_places(find: Find, top_k: int) -> None:
    magnitudes = torch.stack([*ALL.values()]).view(-1, 4096).abs()
    for rows in (magnitudes, *magnitudes.split(1)):
        assert all(len(set(places)) == top_k for places in find(rows, top_k).tolist())
