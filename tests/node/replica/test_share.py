"""Ranks own whole parameters and whole chunks, and what lies elsewhere is fetched one at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from node.exact.chunks import ChunkLayout
from node.replica.canonical import canonical_bytes, canonical_size
from node.replica.digest import state_digest
from node.replica.share import RankShare, SpreadParameters, owners_of
from node.replica.snapshot import Snapshots, read_snapshot
from node.replica.state_file import load_tensors, save_tensors
from protocol.codec.payload import Coefficients
from protocol.codec.sums import encode_sums, rounded, sums_of
from tests.support.votes import votes

SHAPES = {"b": (70,), "head": (130, 64), "m": (64, 64), "n": (64, 128), "z": (3,)}
LAYOUT = ChunkLayout.from_shapes(SHAPES)
shapes = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=3),
    st.one_of(st.tuples(st.integers(1, 300)), st.tuples(st.integers(1, 300), st.integers(1, 300))),
    min_size=1,
)


def parameters() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) for name, shape in SHAPES.items()}


@given(shapes, st.integers(1, 9))
def test_nobody_owns_more_than_a_part_and_one_largest(
    shapes: dict[str, tuple[int, ...]], ranks: int
) -> None:
    layout = ChunkLayout.from_shapes(shapes)
    owners = owners_of(layout, ranks)
    assert owners.keys() == shapes.keys()
    small = sum(line.entries for line in layout.lines)
    largest = max([small, *(each.rows * each.columns for each in layout.matrices)])
    owned = [0] * ranks
    for name, owner in owners.items():
        owned[owner] += int(np.prod(shapes[name]))
    assert max(owned) <= layout.parameters / ranks + largest


@given(shapes, st.integers(1, 9))
def test_chunks_of_ranks_are_those_of_the_model_each_once(
    shapes: dict[str, tuple[int, ...]], ranks: int
) -> None:
    layout = ChunkLayout.from_shapes(shapes)
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    whole, seen = layout.gather(tensors), torch.zeros(layout.chunks, dtype=torch.int64)
    for rank in range(ranks):
        share = RankShare(layout, rank, ranks)
        own = share.layout.gather({name: tensors[name] for name in share.names})
        assert torch.equal(own, whole[share.chunks])
        seen += share.chunks
    assert (seen == 1).all()


def test_coefficients_are_cut_to_the_chunks_of_a_rank() -> None:
    counts = np.arange(LAYOUT.chunks, dtype=np.uint16) % 3
    owners = np.repeat(np.arange(LAYOUT.chunks), counts)
    whole = Coefficients(
        counts,
        np.arange(len(owners), dtype=np.uint16),
        np.ones(len(owners), np.int16),
        (counts > 0).astype(np.uint8) * 7,
    )
    for rank in range(3):
        share = RankShare(LAYOUT, rank, 3)
        mine = share.chunks.numpy()
        cut = share.cut(whole)
        assert cut.counts.tolist() == counts[mine].tolist()
        assert cut.indices.tolist() == [at for at, owner in enumerate(owners) if mine[owner]]
        assert cut.scales is not None
        assert cut.scales.tolist() == (7 * (counts[mine] > 0)).tolist()


def test_sums_are_cut_to_the_chunks_of_a_rank() -> None:
    found = rounded(votes(LAYOUT.chunks), np.arange(LAYOUT.chunks, dtype=np.uint8), 4)
    seen = np.zeros((LAYOUT.chunks, 4096), np.int32)
    for rank in range(3):
        share = RankShare(LAYOUT, rank, 3)
        mine = share.chunks.numpy()
        cut = share.cut_levels(found)
        encode_sums(cut)  # judges them
        np.testing.assert_array_equal(cut.exponents, np.flatnonzero(mine))
        seen[mine] = sums_of(cut)
    np.testing.assert_array_equal(seen, sums_of(found))


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
def test_digests_of_parts_add_up(ranks: int) -> None:
    held = parameters()
    parts = (
        {name: held[name] for name in RankShare(LAYOUT, rank, ranks).names} for rank in range(ranks)
    )
    found = sum(state_digest(part, among=SHAPES) for part in parts)
    assert found % 2**64 == state_digest(held)


def test_spread_parameters_are_fetched_once_each_and_put_back(tmp_path: Path) -> None:
    held, fetched, put = parameters(), list[str](), list[str]()

    def fetch(name: str) -> torch.Tensor:
        fetched.append(name)
        return held[name].clone()

    def write(name: str, tensor: torch.Tensor) -> None:
        put.append(name)
        held[name].copy_(tensor)

    spread = SpreadParameters(SHAPES, fetch, write)
    assert canonical_size(spread) == canonical_size(held)
    assert fetched == []
    assert b"".join(canonical_bytes(spread)) == b"".join(canonical_bytes(held))
    assert fetched == sorted(SHAPES)
    fetched.clear()
    snapshots = Snapshots(tmp_path)
    path = snapshots.path(snapshots.write(0, spread))
    save_tensors(tmp_path / "state", spread, {"round": 1})
    assert fetched == 2 * sorted(SHAPES)
    before = {name: tensor.clone() for name, tensor in held.items()}
    for tensor in held.values():
        tensor.zero_()
    assert path is not None
    read_snapshot(path, spread)
    assert put == sorted(SHAPES)
    saved, about = load_tensors(tmp_path / "state")
    assert about == {"round": 1}
    for name, tensor in before.items():
        assert torch.equal(held[name], tensor)
        assert torch.equal(saved[name], tensor)
