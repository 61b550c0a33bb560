"""What is measured on a kind of device, and for how long: whole models on a card, tiny ones on a
CPU, where only the program itself is tried.
"""

import os
from dataclasses import dataclass

import torch

from protocol.runfile import ModelSpec
from tests.benchmarks.engine.memory import MODELS, TINY
from tests.support.tiny import CONFIG


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of all parts."""

    device: str
    """As torch names it."""

    equal: ModelSpec
    """The network whose replicas are compared."""

    timed: ModelSpec
    """The network that is timed, and whose memory is measured."""

    trained: ModelSpec
    """The network of the run of one node."""

    shared: ModelSpec
    """The network of the nodes that share a card; its vocabulary is that of bytes."""

    large: ModelSpec
    """The network that is held to the memory of a home card."""

    sequence_length: int
    """Tokens of a sample of the run of one node, and of the pass whose memory is measured."""

    local_samples: int
    """Samples of a local step of the run of one node."""

    compute_ms: int
    """Time to the bell of a round of a run."""

    threads: int
    """CPU threads of each process."""

    repeats: int
    """Timed repeats."""

    rounds: int
    """Rounds of a run that are measured."""


EQUAL_ROUNDS = 50
"""Rounds in which replicas are compared."""

_GPT2 = ModelSpec(type="gpt2", config={"vocab_size": 50257, "n_embd": 768, "n_layer": 12})
"""Of 124 million parameters."""

_LARGE = ModelSpec(
    config={
        "vocab_size": 32000,
        "hidden_size": 2048,
        "intermediate_size": 5632,
        "num_hidden_layers": 20,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "tie_word_embeddings": True,
    }
)
"""Of 1093 million parameters."""

_BYTES = ModelSpec(config={**ModelSpec().config, **CONFIG})


def sizes_for(device: str) -> Sizes:
    """Those of a device's kind."""
    if torch.device(device).type == "cpu":
        return Sizes(device, *[_BYTES] * 5, 32, 2, 1500, threads=1, repeats=5, rounds=3)
    models = (MODELS["llama-20m"], _GPT2, _GPT2, TINY, _LARGE)
    threads = max(1, (os.cpu_count() or 1) // 2)
    return Sizes(device, *models, 1024, 64, 10_000, threads=threads, repeats=15, rounds=4)
