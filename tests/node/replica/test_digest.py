"""Quick and strong names of a replica's parameters."""

import hashlib
import struct

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from node.replica.digest import ROW_WORDS, canonical_sha256, state_digest
from protocol.errors import LocalProtocolError

torch.set_num_threads(1)


def _parameters() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "b": torch.randn(3, ROW_WORDS, generator=generator),
        "a": torch.randn(5, generator=generator),
        "c": torch.randn(2, 3, 700, generator=generator),
        "scalar": torch.randn((), generator=generator),
        "nothing": torch.zeros(0),
    }


def _splitmix64(counter: int) -> int:
    state = (counter + 1) * 0x9E3779B97F4A7C15 % 2**64
    state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
    return state ^ (state >> 31)


def _reference(parameters: dict[str, Tensor]) -> int:
    """The module's formula in Python's own integers."""
    total, row = 0, 0
    for name in sorted(parameters):
        blob = b"".join(struct.pack("<f", value) for value in parameters[name].flatten().tolist())
        words = struct.unpack(f"<{len(blob) // 4}i", blob)
        for first in range(0, len(words), ROW_WORDS):
            line = words[first : first + ROW_WORDS]
            total += (_splitmix64(2**32 + row) | 1) * sum(
                (_splitmix64(j) | 1) * word for j, word in enumerate(line)
            )
            row += 1
    return total % 2**64


def test_splitmix64_is_the_published_generator() -> None:
    assert [_splitmix64(counter) for counter in range(2)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
    ]


def test_the_hash_is_its_formula_in_plain_integers() -> None:
    assert state_digest(_parameters()) == _reference(_parameters())


def test_the_hash_of_known_parameters_never_changes() -> None:
    values = torch.arange(10_000, dtype=torch.int32).mul(-1_640_531_527).view(torch.float32)
    assert state_digest({"w": values.view(100, 100), "b": values[:7]}) == 12526170850682144401


@pytest.mark.parametrize("strip_rows", [1, 2, 1000])
@pytest.mark.parametrize("threads", [1, 2])
def test_the_hash_does_not_depend_on_strips_or_threads(strip_rows: int, threads: int) -> None:
    expected = state_digest(_parameters())
    torch.set_num_threads(threads)
    try:
        assert state_digest(_parameters(), strip_rows=strip_rows) == expected
    finally:
        torch.set_num_threads(1)


def test_the_hash_does_not_depend_on_the_mappings_order() -> None:
    parameters = _parameters()
    assert state_digest(dict(reversed(parameters.items()))) == state_digest(parameters)


@settings(max_examples=60)
@given(st.sampled_from(["a", "b", "c", "scalar"]), st.integers(0, 2**30), st.integers(0, 31))
def test_every_single_bit_counts(name: str, entry: int, bit: int) -> None:
    parameters = _parameters()
    before = state_digest(parameters), canonical_sha256(parameters)
    words = parameters[name].view(-1).view(torch.int32)
    words[entry % len(words)] ^= torch.tensor(
        1 << bit if bit < 31 else -(1 << 31), dtype=torch.int32
    )
    after = state_digest(parameters), canonical_sha256(parameters)
    assert before[0] != after[0]
    assert before[1] != after[1]


def test_swapped_rows_change_the_hash() -> None:
    parameters = _parameters()
    swapped = parameters | {"b": parameters["b"][[1, 0, 2]]}
    assert state_digest(swapped) != state_digest(parameters)


def test_swapped_entries_change_the_hash() -> None:
    parameters = _parameters()
    swapped = parameters | {"a": parameters["a"][[1, 0, 2, 3, 4]]}
    assert state_digest(swapped) != state_digest(parameters)


def test_minus_zero_is_not_zero() -> None:
    plus, minus = {"a": torch.tensor([0.0])}, {"a": torch.tensor([-0.0])}
    assert state_digest(plus) != state_digest(minus)
    assert canonical_sha256(plus) != canonical_sha256(minus)


def test_the_payload_of_a_nan_counts() -> None:
    quiet, other = (
        {"a": torch.tensor([word], dtype=torch.int32).view(torch.float32)}
        for word in (0x7FC00000, 0x7FC00001)
    )
    assert state_digest(quiet) != state_digest(other)
    assert canonical_sha256(quiet) != canonical_sha256(other)


def test_a_view_hashes_as_its_copy() -> None:
    matrix = torch.randn(64, 100)
    assert state_digest({"w": matrix.T}) == state_digest({"w": matrix.T.contiguous()})


def test_sha256_covers_names_shapes_and_little_endian_bits() -> None:
    expected = hashlib.sha256()
    expected.update(struct.pack("<I", 1) + b"a" + struct.pack("<IQ", 1, 1) + struct.pack("<f", 2.5))
    expected.update(
        struct.pack("<I", 2)
        + "é".encode()
        + struct.pack("<IQQ", 2, 2, 1)
        + struct.pack("<ff", 1.0, -3.0)
    )
    parameters = {"é": torch.tensor([[1.0], [-3.0]]), "a": torch.tensor([2.5])}
    assert canonical_sha256(parameters) == expected.digest()


def test_another_shape_or_name_has_another_sha256() -> None:
    values = torch.arange(6.0)
    digests = {
        canonical_sha256({"a": values}),
        canonical_sha256({"a": values.view(2, 3)}),
        canonical_sha256({"a": values.view(3, 2)}),
        canonical_sha256({"b": values}),
        canonical_sha256({"a": values[:3], "b": values[3:]}),
    }
    assert len(digests) == 5


def test_anything_but_float32_is_refused_by_name() -> None:
    with pytest.raises(
        LocalProtocolError, match=r"digest of half: expected float32, got torch.float16"
    ):
        state_digest({"half": torch.zeros(3, dtype=torch.float16)})


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_gpu_computes_the_same_hash() -> None:
    on_gpu = {name: tensor.cuda() for name, tensor in _parameters().items()}
    assert state_digest(on_gpu) == state_digest(_parameters())
    assert canonical_sha256(on_gpu) == canonical_sha256(_parameters())
