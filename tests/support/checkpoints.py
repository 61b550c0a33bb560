"""Small models of three types, and checkpoints of them."""

import errno
import os
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from node.data.tokenizer import ByteTokenizer
from node.model.build import build_model, named_parameters_once
from node.model.checkpoint import save_checkpoint
from node.replica.genesis import fill

TINY: dict[str, dict[str, Any]] = {
    "llama": {
        "vocab_size": 257,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "max_position_embeddings": 32,
        "tie_word_embeddings": True,
    },
    "gpt2": {"vocab_size": 257, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32},
    "mamba": {"vocab_size": 257, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
}
ABOUT = {"run": "0" * 32, "round": 7, "digest": "ab"}


def tiny_model(model_type: str = "llama", seed: int = 1) -> nn.Module:
    model = build_model(model_type, TINY[model_type])
    fill(model, seed, 0.3)
    return model


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {
        name: parameter.detach().clone() for name, parameter in named_parameters_once(model).items()
    }


def saved_checkpoint(directory: Path, model_type: str = "llama", seed: int = 1) -> nn.Module:
    model = tiny_model(model_type, seed)
    save_checkpoint(directory, model, copied(model), ByteTokenizer(), ABOUT)
    return model


def disk_full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
