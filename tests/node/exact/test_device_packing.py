"""Payloads packed on a device: the bytes of the host for any extraction, without waiting for it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from node.exact.accelerator import Accelerator
from node.exact.chunks import ChunkLayout
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.device_packing import packed
from node.exact.plain import Plain
from protocol.codec.payload import VALUE_BITS, Body, Header, PayloadShape, decode, sealed
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNK_ENTRIES

HEADER = Header(RunId("ab" * 16), 7, PeerId("01" * 16))


def on_the_host(indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
    return Plain(ChunkLayout.from_shapes({"any": (1,)})).pack(indices, values, shape)


def extracted(
    shape: PayloadShape, seed: int, *, sent_share: float = 1.0, span: int = CHUNK_ENTRIES
) -> list[Tensor]:
    """Indices [chunks, k] drawn from the last `span` entries of a chunk, and values, some of them
    0.
    """
    rng = np.random.default_rng(seed)
    places = [np.sort(rng.permutation(span)[: shape.top_k]) for _ in range(shape.chunks)]
    values = rng.integers(1, shape.value_max + 1, (shape.chunks, shape.top_k)) * rng.choice([-1, 1])
    values *= rng.random(values.shape) < sent_share
    return [
        torch.from_numpy(array.astype(np.int16))
        for array in (np.array(places) + CHUNK_ENTRIES - span, values)
    ]


@settings(max_examples=150)
@given(
    chunks=st.integers(1, 12),
    top_k=st.sampled_from([1, 2, 3, 8, 32, 100, 513]),
    value_bits=st.sampled_from(VALUE_BITS),
    sent_share=st.sampled_from([0.0, 0.1, 0.9, 1.0]),
    tight=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_extraction_is_packed_as_on_the_host(
    chunks: int, top_k: int, value_bits: int, sent_share: float, tight: bool, seed: int
) -> None:
    shape = PayloadShape(chunks, top_k, value_bits)
    span = top_k if tight else CHUNK_ENTRIES
    indices, values = extracted(shape, seed, sent_share=sent_share, span=span)
    assert packed(indices, values, shape) == on_the_host(indices, values, shape)


@pytest.mark.parametrize("top_k", [1, 32, CHUNK_ENTRIES])
@pytest.mark.parametrize("last", [False, True])
def test_the_shortest_and_the_longest_gaps_are_packed_as_on_the_host(
    top_k: int, last: bool
) -> None:
    shape = PayloadShape(3, top_k, 1)
    first = CHUNK_ENTRIES - top_k if last else 0
    indices = torch.arange(first, first + top_k, dtype=torch.int16).expand(3, -1).contiguous()
    values = torch.ones(3, top_k, dtype=torch.int16)
    assert packed(indices, values, shape) == on_the_host(indices, values, shape)


def test_an_accelerator_sends_what_decodes_to_what_the_engine_took() -> None:
    layout = ChunkLayout.from_shapes({"a": (130, 70), "b": (97,), "c": (65, 3, 43)})
    shape = PayloadShape(layout.chunks, 24, 4)
    engine = Momentum(
        layout,
        DemoSettings(top_k=24, value_bits=4),
        "cpu",
        backend=Accelerator(layout, torch.device("cpu")),
    )
    engine.accumulate({name: torch.randn(sizes) for name, sizes in layout.shapes.items()})
    for active in (None, layout.chunks_of({"a"}), torch.zeros(layout.chunks, dtype=torch.bool)):
        extraction = engine.extract(active)
        body = extraction.body(shape)
        header, found = decode(sealed(HEADER, body, shape), shape)
        assert header == HEADER
        assert body.values == len(found.values)
        for name in ("counts", "indices", "values"):
            assert np.array_equal(getattr(found, name), getattr(extraction.coefficients, name))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("value_bits", VALUE_BITS)
def test_a_gpu_packs_the_bytes_of_the_host(value_bits: int) -> None:
    shape = PayloadShape(500, 32, value_bits)
    indices, values = extracted(shape, 3, sent_share=0.95)
    assert packed(indices.cuda(), values.cuda(), shape) == on_the_host(indices, values, shape)
