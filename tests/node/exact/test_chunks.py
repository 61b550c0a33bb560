import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from node.exact.chunks import ChunkLayout, strips
from protocol.errors import LocalProtocolError
from tests.node.exact import reference

SHAPES: dict[str, tuple[int, ...]] = {
    "embedding": (509, 48),  # prime by not a multiple of 64
    "conv": (70, 3, 5, 7),
    "wide": (64, 700),
    "square": (128, 192),
    "thin": (2, 300),
    "scalar": (),
    "bias": (97,),
    "long": (9001,),
    "corner": (65, 130),
    "empty": (0, 5),
    "none": (0,),
}


def tensors_of(shapes: dict[str, tuple[int, ...]], seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def as_numpy(tensors: dict[str, torch.Tensor]) -> dict[str, reference.Floats]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def test_chunks_are_those_of_the_reference() -> None:
    layout = ChunkLayout.from_shapes(SHAPES)
    tensors = tensors_of(SHAPES)
    expected = reference.to_chunks(as_numpy(tensors))
    assert layout.chunks == len(expected)
    assert layout.parameters == sum(map(math.prod, SHAPES.values()))
    assert np.array_equal(layout.gather(tensors).numpy(), expected)


dimension = st.sampled_from([1, 2, 5, 63, 64, 65, 97, 128, 150])
shape = st.lists(dimension, max_size=2).map(tuple) | st.tuples(
    dimension, st.integers(1, 9), st.integers(1, 9)
)


@given(st.lists(shape, min_size=1, max_size=5), st.integers(1, 7))
@settings(max_examples=60)
def test_any_strip_holds_its_part_of_the_whole_and_goes_back_where_it_came_from(
    shapes: list[tuple[int, ...]], size: int
) -> None:
    named = {f"p{index}": shape for index, shape in enumerate(shapes)}
    layout = ChunkLayout.from_shapes(named)
    tensors = tensors_of(named)
    whole = layout.gather(tensors)
    assert np.array_equal(whole.numpy(), reference.to_chunks(as_numpy(tensors)))
    views = layout.views(tensors)
    returned = {name: torch.full_like(tensor, math.nan) for name, tensor in tensors.items()}
    targets = layout.views(returned)
    for first, stop in strips(layout.chunks, size):
        strip = torch.full((stop - first, 64, 64), math.nan)
        layout.gather_strip(views, first, strip)
        assert torch.equal(strip, whole[first:stop])
        for entries, target in layout.pairs(targets, first, strip):
            target.copy_(entries)
    assert all(torch.equal(returned[name], tensors[name]) for name in named)


def test_the_order_of_the_names_given_does_not_matter() -> None:
    backwards = dict(reversed(SHAPES.items()))
    tensors = tensors_of(SHAPES)
    expected = ChunkLayout.from_shapes(SHAPES).gather(tensors)
    assert torch.equal(ChunkLayout.from_shapes(backwards).gather(tensors), expected)


def test_a_prime_vocabulary_costs_padding_and_not_one_chunk_per_entry() -> None:
    assert ChunkLayout.from_shapes({"embedding": (50257, 64)}).chunks == 786


def test_a_matrix_that_padding_would_more_than_double_is_small() -> None:
    layout = ChunkLayout.from_shapes({"half": (32, 64), "less": (31, 64), "scalar": ()})
    assert [matrix.name for matrix in layout.matrices] == ["half"]
    assert [line.name for line in layout.lines] == ["less", "scalar"]
    assert layout.chunks == 2


def test_gather_takes_any_dtype_and_strides() -> None:
    shapes = {"a": (65, 70), "b": (66, 2, 40), "c": (5,)}
    layout = ChunkLayout.from_shapes(shapes)
    tensors = {
        "a": torch.randn(70, 65, dtype=torch.float64).T,
        "b": torch.randn(40, 66, 2).to(torch.bfloat16).permute(1, 2, 0),
        "c": torch.arange(10)[::2],
    }
    plain = {name: tensor.float().contiguous().numpy() for name, tensor in tensors.items()}
    assert np.array_equal(layout.gather(tensors).numpy(), reference.to_chunks(plain))


def test_scatter_reaches_tensors_that_no_view_fits() -> None:
    shapes = {"b": (66, 2, 40), "c": (5,)}
    layout = ChunkLayout.from_shapes(shapes)
    tensors = tensors_of(shapes)
    targets = {"b": torch.zeros(40, 66, 2).permute(1, 2, 0), "c": torch.zeros(10)[::2]}
    layout.scatter(layout.gather(tensors), targets)
    assert all(torch.equal(targets[name], tensors[name]) for name in shapes)


def test_none_counts_as_zeros_and_out_is_filled_whatever_it_held() -> None:
    layout = ChunkLayout.from_shapes(SHAPES)
    tensors = tensors_of(SHAPES)
    out = torch.full((layout.chunks, 64, 64), math.nan)
    zeroed = tensors | {name: torch.zeros(SHAPES[name]) for name in ("conv", "bias")}
    assert layout.gather(tensors | {"conv": None, "bias": None}, out) is out
    assert torch.equal(out, layout.gather(zeroed))
    assert not layout.gather(dict.fromkeys(SHAPES)).any()


def test_chunks_of_names_the_chunks_that_hold_them() -> None:
    layout = ChunkLayout.from_shapes(SHAPES)
    for name in SHAPES:
        tensors = {
            other: torch.full(shape, float(other == name)) for other, shape in SHAPES.items()
        }
        held = layout.gather(tensors).flatten(1).any(dim=1)
        assert torch.equal(layout.chunks_of({name}), held), name


def test_tensors_of_other_names_or_shapes_are_refused() -> None:
    layout = ChunkLayout.from_shapes({"a": (3,), "b": (4, 4)})
    with pytest.raises(
        LocalProtocolError, match=r"each of 2 parameters, got 1, at odds over \['b'\]"
    ):
        layout.gather({"a": torch.zeros(3)})
    with pytest.raises(LocalProtocolError, match=r"expected b of shape \(4, 4\), got \(16,\)"):
        layout.gather({"a": torch.zeros(3), "b": torch.zeros(16)})


def test_a_model_without_a_single_entry_is_refused() -> None:
    with pytest.raises(LocalProtocolError, match="at least one entry"):
        ChunkLayout.from_shapes({"a": (0, 3)})
