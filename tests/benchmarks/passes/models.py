"""Whole models: what is predicted of their memory, beside what torch hands out."""

from typing import Any

import torch
from torch import nn

from node.model.build import build_model
from node.model.head import backward_by_pieces
from node.model.training import TrainingModel
from protocol.planner.activations import pass_bytes
from protocol.runfile import ModelSpec
from tests.benchmarks.accelerator.authors import spec_of, tokens_of
from tests.benchmarks.passes.variants import measured, queued
from tests.support.allocations import peak_allocated_bytes

LENGTH = 512
"""Tokens of a sample."""

_LLAMA = {
    "vocab_size": 50257,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "tie_word_embeddings": True,
}
_MEDIUM = {"vocab_size": 50257, "n_embd": 1024, "n_layer": 24, "n_head": 16}
_NO_DROPOUT = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}

MODELS = {
    "llama of 51 M": (ModelSpec(config=_LLAMA), 2),
    "GPT-2 of 124 M": (ModelSpec(type="gpt2", config={"vocab_size": 50257}), 1),
    "GPT-2 of 355 M": (ModelSpec(type="gpt2", config=_MEDIUM | _NO_DROPOUT), 1),
}
"""Networks, and samples of a pass."""

REPEATS = 3


def row(model: ModelSpec, samples: int, length: int) -> dict[str, Any]:
    """Predicted and measured bytes, in this process."""
    tokens, trainee = tokens_of(spec_of(model), 0, samples, length), _float32(model, samples)
    trainee.zero_gradients()
    found: dict[str, Any] = {
        "parameters": sum(each.numel() for each in trainee.parameters.values())
    }
    for name, recomputes in (("pass", False), ("pass, computed again", True)):
        trainee.recompute(recomputes)
        peak = peak_allocated_bytes(lambda: trainee.gradient(tokens))
        found[name] = _beside(pass_bytes(model, samples, length, recomputes=recomputes), peak)
    return found | {"samples": samples, "length": length}


def _float32(model: ModelSpec, samples: int) -> TrainingModel:
    """A network in the type for which passes are predicted."""
    return TrainingModel(build_model(model.type, model.config), "cpu", samples)


def _beside(predicted: int, seen: int) -> dict[str, float]:
    return {"predicted_bytes": predicted, "bytes": seen, "ratio": round(predicted / seen, 3)}


def timed(model: ModelSpec, samples: int, length: int) -> dict[str, Any]:
    """Passes in their ways by one thread, and the loss alone."""
    torch.set_num_threads(1)
    spec = spec_of(model)
    trainee = _float32(model, samples)
    tokens = tokens_of(spec, 0, samples, length)
    ways = list(measured(trainee, tokens, REPEATS))[-1]
    loops = queued(trainee, tokens, REPEATS)
    del trainee
    hidden, head = torch.randn(8 * 1024, 768), nn.Linear(768, 50257, bias=False)
    head.weight.grad = torch.zeros_like(head.weight)
    targets = torch.randint(0, 50257, (len(hidden),))
    loss = peak_allocated_bytes(lambda: backward_by_pieces(hidden, head, targets, 1.0))
    return {"ways": ways, "loops": loops, "loss_bytes": loss - hidden.nbytes}
