"""The loss of a published checkpoint on held-out text."""

from pathlib import Path

import torch

from node.data.corpus import Corpus
from node.model.checkpoint import load_checkpoint
from node.model.training import TrainingModel
from protocol.errors import DataError


def evaluate_checkpoint(
    directory: Path,
    corpus: Corpus,
    *,
    samples: int,
    sequence_length: int,
    device: torch.device | str = "cpu",
) -> float:
    """Loss in nats per token on fixed validation windows of `corpus`, at most `samples` of them.

    Raises `DataError` when data and checkpoint have different tokenizers.
    """
    checkpoint = load_checkpoint(directory, device)
    if checkpoint.tokenizer.to_json() != corpus.manifest.tokenizer:
        raise DataError(
            f"{corpus.origin}: expected the tokenizer of {directory}, got another; "
            "prepare the data with that tokenizer"
        )
    model = TrainingModel(checkpoint.model, device)
    return model.evaluate(corpus.validation(samples, sequence_length))
