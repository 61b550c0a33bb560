"""Promises of a checkpoint's evaluation."""

from pathlib import Path

import pytest
import torch

from node.data.corpus import Corpus
from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer, SubwordTokenizer
from node.model.evaluate import evaluate_checkpoint
from node.model.training import TrainingModel
from protocol.errors import DataError
from tests.support.checkpoints import saved_checkpoint

torch.set_num_threads(1)


def test_a_checkpoint_is_evaluated_on_fixed_validation_windows(tmp_path: Path) -> None:
    model = saved_checkpoint(tmp_path / "checkpoint")
    documents = [(f"document-{number}", f"text number {number} " * 9) for number in range(100)]
    prepare(documents, tmp_path / "data", ByteTokenizer(), source="tests")
    corpus = Corpus.open(tmp_path / "data")
    loss = evaluate_checkpoint(tmp_path / "checkpoint", corpus, samples=5, sequence_length=16)
    assert loss == pytest.approx(TrainingModel(model).evaluate(corpus.validation(5, 16)), rel=1e-6)
    tokenizer = SubwordTokenizer.trained([text for _, text in documents], 270)
    prepare(documents, tmp_path / "other", tokenizer, source="tests")
    with pytest.raises(DataError, match="expected the tokenizer of"):
        evaluate_checkpoint(
            tmp_path / "checkpoint", Corpus.open(tmp_path / "other"), samples=5, sequence_length=16
        )
