"""A step by results: the bits written down, the same as the rounded sums would make."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from node.exact.local_steps.aggregate import MovementSum, step
from node.exact.local_steps.results import apply_results
from protocol.codec.commit_sums import AuthorSet
from protocol.codec.scales import CODE_MAX
from protocol.codec.sums import Levels, decode_sums, encode_sums, sums_of
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES
from protocol.sums.adding import Author, levels_of
from protocol.sums.movements import Counted, Movement
from protocol.sums.results import author_set
from tests.node.exact.local_steps.test_aggregate import DECAY, STEPS, digest
from tests.node.exact.test_equal_bits import LAYOUT, parameters
from tests.protocol.sums.test_adding import peer

GOLDEN = {
    (1, 1.0): "4db4f2e618460f9c4f86dc7bdb0290879e98075cc1a3aa71eca8409c1585e2b0",
    (4, 2.5): "52e65e111dc57e20d2e0956d38ce56e649503ae049d1539fa2a1e5027d832315",
}
"""SHA-256 of the parameters after three steps by rounded sums; by rounding and gain."""

TOP_K = CHUNK_ENTRIES
"""Coefficients that the authors of STEPS may send of a chunk."""


def results(movements: list[Movement], coarse: int = 4) -> tuple[Levels, AuthorSet]:
    levels = levels_of(Counted(movements, LAYOUT.chunks), LAYOUT.chunks, coarse)
    authors = [Author(peer(n), m.samples, m.code_max) for n, m in enumerate(movements)]
    return decode_sums(encode_sums(levels), LAYOUT.chunks), author_set(authors)


class RoundedSum(MovementSum):
    """The movements' exact sums, each replaced by what the result says."""

    def __init__(self, movements: list[Movement], coarse: int, gain: float) -> None:
        super().__init__(LAYOUT, movements, gain)
        self._found = torch.from_numpy(sums_of(results(movements, coarse)[0]).astype(np.float32))

    def sum_strip(self, first: int, strip: torch.Tensor) -> torch.Tensor:
        units = super().sum_strip(first, strip)
        found = self._found[first : first + len(strip)].view(-1, 64, 64)
        strip.copy_(found.transpose(1, 2))
        return units


@pytest.mark.parametrize(("coarse", "gain"), GOLDEN)
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("strip_chunks", [1, 7, 1000])
def test_three_steps_by_results_end_at_the_digest_written_down(
    coarse: int, gain: float, flat: bool, strip_chunks: int
) -> None:
    found = parameters()
    for movements in STEPS:
        levels, authors = results(movements, coarse)
        apply_results(
            LAYOUT,
            found,
            levels,
            authors,
            DECAY,
            top_k=TOP_K,
            gain=gain,
            strip_chunks=strip_chunks,
            flat=flat,
        )
    assert digest(found) == GOLDEN[coarse, gain]


@pytest.mark.parametrize(("coarse", "gain"), GOLDEN)
def test_rounded_sums_in_place_of_exact_ones_end_at_the_same_digest(
    coarse: int, gain: float
) -> None:
    found = parameters()
    for movements in STEPS:
        step(LAYOUT, found, RoundedSum(movements, coarse, gain), DECAY)
    assert digest(found) == GOLDEN[coarse, gain]


def stepped(levels: Levels, authors: AuthorSet, top_k: int = TOP_K) -> dict[str, torch.Tensor]:
    found = parameters()
    apply_results(LAYOUT, found, levels, authors, DECAY, top_k=top_k)
    return found


def test_results_that_no_movements_have_move_nothing() -> None:
    levels, authors = results(STEPS[0])
    none, nobody = results([])
    still = digest(stepped(none, nobody))
    far = replace(levels, exponents=np.where(levels.counts > 0, 63, 0).astype(np.uint8))
    assert digest(stepped(far, replace(authors, code_max=100))) == still
    assert digest(stepped(levels, nobody)) == still
    assert digest(stepped(levels, authors)) != still

    one = np.flatnonzero(levels.counts)[3]
    exponents = levels.exponents.copy()
    exponents[one] = 63
    liars, honest = replace(levels, exponents=exponents), replace(authors, code_max=200)
    before = LAYOUT.gather(stepped(none, nobody))
    found = LAYOUT.gather(stepped(liars, honest)) - before
    assert not found[one].any(), "the chunk that is beyond reach"
    expected = LAYOUT.gather(stepped(levels, honest)) - before
    others = np.arange(LAYOUT.chunks) != one
    assert torch.equal(found[others], expected[others])
    assert expected[one].any()


@pytest.mark.parametrize("unit", [0, 63])
@pytest.mark.parametrize("time", [0, 18])
def test_the_largest_and_the_least_levels_leave_numbers(unit: int, time: int) -> None:
    places = np.tile(np.arange(120, dtype=np.uint16), LAYOUT.chunks)
    levels = Levels(
        np.full(LAYOUT.chunks, unit, np.uint8),
        np.full(LAYOUT.chunks, time, np.uint8),
        np.full(LAYOUT.chunks, 120, np.uint16),
        places,
        np.where(places % 2, 91, -91).astype(np.int8),
    )
    assert encode_sums(levels)
    both = [{name: tensor.clone() for name, tensor in parameters().items()} for _ in range(2)]
    for found, flat in zip(both, (False, True), strict=True):
        authors = AuthorSet(4096, 4096, 4096, CODE_MAX)
        apply_results(LAYOUT, found, levels, authors, DECAY, top_k=4096, gain=64.0, flat=flat)
    assert digest(both[0]) == digest(both[1])
    assert all(tensor.isfinite().all() for tensor in both[0].values())


def test_levels_of_another_model_and_a_gain_that_is_not_exact_are_our_own_fault() -> None:
    levels, authors = results(STEPS[0])
    short = replace(levels, counts=levels.counts[1:])
    with pytest.raises(LocalProtocolError, match="expected levels of"):
        stepped(short, authors)
    with pytest.raises(LocalProtocolError, match="expected a gain"):
        apply_results(LAYOUT, parameters(), levels, authors, DECAY, top_k=9, gain=1.03)
    with pytest.raises(LocalProtocolError, match="float32"):
        apply_results(LAYOUT, parameters(), levels, authors, 0.1, top_k=9)
