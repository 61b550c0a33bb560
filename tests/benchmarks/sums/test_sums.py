"""The rule by which sums are rounded, its code, and a cell that is trained with it."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from node.data.corpus import Corpus
from protocol.limits import CHUNK_ENTRIES
from tests.benchmarks.headline.study import TASKS
from tests.benchmarks.headline.texts import prepare_text
from tests.benchmarks.sums.rounding import Whole, coded_bits, entropy_bits, rounded
from tests.benchmarks.sums.train import SumsCell, train


def votes(chunks: int, seed: int = 0) -> Whole:
    """Sums of 16 authors' signs at a tenth of the places, of sizes within a factor of three."""
    chance = np.random.default_rng(seed)
    sums = np.zeros((chunks, CHUNK_ENTRIES), np.int64)
    for _ in range(16):
        there = chance.random(sums.shape) < 0.1
        sums += there * chance.choice((-1, 1), sums.shape) * chance.integers(300, 900, (chunks, 1))
    return sums


@pytest.mark.parametrize("coarse", [1, 4])
def test_the_step_is_the_least_that_the_root_mean_square_allows(coarse: int) -> None:
    sums = votes(3)
    found = rounded(sums, coarse)
    for row, step in zip(sums, found.steps, strict=True):
        mean_square = (row**2).sum() / np.count_nonzero(row)
        assert coarse * mean_square < 2 ** (2 * step + 1)
        assert coarse * mean_square >= 2 ** (2 * step - 1)


def test_halves_go_away_from_zero_and_both_signs_alike() -> None:
    sums = votes(1)
    found, other = rounded(sums, 1), rounded(-sums, 1)
    assert (found.levels == -other.levels).all()
    exact = np.abs(sums) / 2.0 ** found.steps[:, None]
    assert (np.abs(found.levels) == np.floor(exact + 0.5)).all()
    assert np.abs(found.sums - sums).max() <= 2 ** (found.steps[0] - 1)


def test_chunks_without_a_vote_or_with_ones_alone_stay_as_they_are() -> None:
    sums = np.zeros((2, CHUNK_ENTRIES), np.int64)
    sums[1, [0, 7, 4095]] = (1, -1, 1)
    assert (rounded(sums, 1).sums == sums).all()


def test_the_code_counts_what_its_text_says() -> None:
    levels = np.zeros((2, CHUNK_ENTRIES), np.int64)
    levels[1, [3, 4]] = (2, -1)
    above_0 = min((3 >> k) + 1 + k + 1 + k for k in range(12))  # gaps of 3 and 0
    above_1 = 1  # of two the first
    assert coded_bits(levels).tolist() == [13, 13 + 2 + 13 + above_0 + 13 + above_1 + 13]


@pytest.mark.parametrize("coarse", [1, 4])
def test_the_code_is_near_the_entropy(coarse: int) -> None:
    levels = rounded(votes(8), coarse).levels
    assert 1 < coded_bits(levels).sum() / entropy_bits(levels) < 1.05


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    source = [
        (f"file{number}", f"document {number} says {number * 7919}.\n" * 80)
        for number in range(400)
    ]
    directory = tmp_path_factory.mktemp("texts")
    prepare_text("library", source, directory, subwords=False, bytes_min=100, documents_min=3)
    return Corpus.open(directory / "library")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small tensors, which threads would only wait for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def trained(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, object]]:
    """Trains a cell on a network of a second."""
    task = replace(TASKS["library"], layers=1, hidden=32, sequence_length=32, validation_samples=16)
    monkeypatch.setitem(TASKS, "library", task)

    def begin(bits: int, coarse: int) -> dict[str, object]:
        cell = SumsCell("library", 4, 64 * bits, bits, coarse, fade=0.0, gain=2.0, steps=20)
        return train(cell, corpus)

    return begin


def test_cells_with_and_without_rounding_train_and_say_what_they_weigh(
    trained: Callable[..., dict[str, object]],
) -> None:
    whole, signs, two_bits = trained(1, 0), trained(1, 1), trained(2, 4)
    assert whole["payload_bytes"] == pytest.approx(signs["payload_bytes"], rel=0.05)
    assert whole["result_bytes"] == pytest.approx(3 * float(str(whole["payload_bytes"])), rel=0.01)
    assert float(str(two_bits["payload_bytes"])) > 1.5 * float(str(signs["payload_bytes"]))
    losses = [each["points"][-1][1] for each in (whole, signs, two_bits)]  # type: ignore[index]
    assert max(losses) < math.log2(257) - 1, "all learn"
    assert len({*losses}) == 3
