"""The loss of a published checkpoint, or of parameters beside a model, on held-out text."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.model.checkpoint import load_checkpoint
from node.model.passes import Tokens
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


def nats_at(trainee: TrainingModel, parameters: Mapping[str, Tensor], samples: Tokens) -> float:
    """Cross-entropy summed over all targets of int64 [samples, length + 1], with `parameters` in
    the place of the model's own. Those come back, whatever happens; meanwhile nobody else may use
    the model.
    """
    own = {name: parameter.data for name, parameter in trainee.parameters.items()}
    try:
        for name, parameter in trainee.parameters.items():
            there, exact = own[name], parameters[name]
            is_there = exact.device == there.device  # else there was no room for all its bits
            parameter.data = exact if is_there else exact.to(there.device, there.dtype)
        return trainee.evaluate(samples) * len(samples) * (samples.shape[1] - 1)
    finally:
        for name, parameter in trainee.parameters.items():
            parameter.data = own[name]
