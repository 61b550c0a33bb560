"""What is predicted of a pass's memory is what torch hands out, for each type that is written down;
and a pass is measured in each of its ways.
"""

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from node.model.build import build_model
from node.model.training import TrainingModel
from node.system.device import with_threads
from protocol.planner.activations import pass_bytes
from protocol.runfile import ModelSpec
from tests.benchmarks.passes.models import row
from tests.benchmarks.passes.variants import logits_at_once, measured, peak_bytes, queued
from tests.support.tiny import CONFIG

torch.set_num_threads(1)

CPU = torch.device("cpu")
SAMPLES, LENGTH = 2, 128
SHARED = {"vocab_size": 512, "num_hidden_layers": 3, "hidden_size": 128, "num_attention_heads": 4}
LLAMA = SHARED | {"intermediate_size": 352, "num_key_value_heads": 2}
GPT2 = {"vocab_size": 512, "n_layer": 3, "n_embd": 128, "n_head": 4}


def peak(model_type: str, config: Mapping[str, Any], *, recomputes: bool) -> int:
    """Most that a pass takes beside parameters and gradients."""
    trainee = TrainingModel(build_model(model_type, config))
    trainee.recompute(recomputes)
    trainee.zero_gradients()
    tokens = torch.randint(0, 512, (SAMPLES, LENGTH + 1))
    return peak_bytes(lambda: trainee.gradient(tokens), CPU)


@pytest.mark.parametrize("recomputes", [False, True])
@pytest.mark.parametrize(
    ("model_type", "config"),
    [
        ("llama", LLAMA),
        ("llama", LLAMA | {"tie_word_embeddings": True, "intermediate_size": 128}),
        ("mistral", LLAMA),
        ("qwen2", LLAMA),
        ("gpt2", GPT2),
        ("gpt2", GPT2 | {"n_inner": 256, "attn_pdrop": 0.0, "resid_pdrop": 0.0}),
        ("gpt_neox", SHARED | {"intermediate_size": 512}),
    ],
)
def test_the_memory_of_a_pass_is_predicted_within_15_percent(
    model_type: str, config: dict[str, Any], *, recomputes: bool
) -> None:
    model = ModelSpec(type=model_type, config=config)
    predicted = pass_bytes(model, SAMPLES, LENGTH, recomputes=recomputes)
    seen = peak(model_type, config, recomputes=recomputes)
    assert 0.85 < predicted / seen < 1.15, (predicted, seen)


def test_the_memory_of_a_pass_by_pieces_is_predicted_too() -> None:
    """As of a vocabulary whose logits never stand whole: here of pieces of a row."""
    model = ModelSpec(config=LLAMA | {"vocab_size": 50257, "hidden_size": 32})
    few = pass_bytes(model, 1, 512)
    assert 67e6 < few < 100e6
    assert pass_bytes(model, 8, 1024) - 16 * few < 0, "logits do not grow with the tokens"
    assert pass_bytes(ModelSpec(type="mamba", config={}), 1, 512) == 0


def test_a_row_has_what_passes_add() -> None:
    found = row(ModelSpec(config=CONFIG), 2, 32)
    for name in ("pass", "pass, computed again"):
        assert found[name]["bytes"] > 0
    assert found["pass"]["bytes"] > found["pass, computed again"]["bytes"]


def test_a_pass_is_measured_in_each_of_its_ways() -> None:
    trainee = TrainingModel(build_model("llama", CONFIG | {"num_hidden_layers": 4}))
    tokens = torch.randint(0, 257, (4, 33))
    with logits_at_once(5 * 257):
        (*_, rows) = measured(trainee, tokens, 2)
    plain, pieces, again, both = (each["peak_bytes"] for each in rows)
    assert plain > max(pieces, again)
    assert both < min(pieces, again)
    assert rows[0]["ratio"]["median"] == 1.0
    assert all(each["tokens_per_second"] > 0 for each in rows)


def test_a_round_of_passes_takes_no_longer_on_a_processor_than_passes_one_by_one() -> None:
    trainee = TrainingModel(build_model("llama", CONFIG | {"num_hidden_layers": 4}))
    with with_threads(1):  # those of a team spin while they wait for each other
        waited, nodes = queued(trainee, torch.randint(0, 257, (4, 33)), 9)
    assert (waited["queue"], nodes["queue"]) == (False, True)
    assert nodes["ratio"]["median"] < 1.5, "a round's own work is next to nothing"
