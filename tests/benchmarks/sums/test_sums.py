"""What rounded sums weigh beside their entropy, and a cell that is trained with them."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from node.data.corpus import Corpus
from protocol.codec.sums import encode_sums, rounded
from tests.benchmarks.headline.study import TASKS
from tests.benchmarks.headline.texts import prepare_text
from tests.benchmarks.sums.train import SumsCell, _extracted, entropy_bits, train
from tests.node.exact.local_steps.test_residual import residual_after
from tests.support.votes import votes


@pytest.mark.parametrize("coarse", [1, 4])
def test_the_code_is_near_the_entropy(coarse: int) -> None:
    found = rounded(votes(32), np.ones(32, np.uint8), coarse)
    assert 1 < 8 * len(encode_sums(found)) / entropy_bits(found) < 1.05


@pytest.mark.parametrize("cap", [255, 195, 192, -1])
def test_the_extraction_of_the_study_is_that_of_a_node(cap: int) -> None:
    cell = SumsCell("library", 4, 24, 2, 4, fade=0.0, gain=3.0)
    node, study = residual_after(2, value_bits=2), residual_after(2, value_bits=2)
    found, expected = node.extract(code_max=cap).coefficients, _extracted(study, cell, cap)
    for name in ("counts", "indices", "values", "scales"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
    assert torch.equal(node.entries, study.entries)


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
