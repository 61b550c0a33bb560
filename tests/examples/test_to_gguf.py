"""A checkpoint as a GGUF file: the same tensors, turned in pairs, and a tokenizer with all tokens.

Skipped where the package gguf is not installed.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from safetensors.numpy import load_file

from node.data.corpus import Corpus
from node.model.build import build_model, named_parameters_once
from node.model.checkpoint import save_checkpoint
from tests.support.tiny import CONFIG, tiny_corpus

gguf = pytest.importorskip("gguf")
EXAMPLE = Path(__file__).parents[2] / "examples" / "to_gguf.py"


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("to_gguf", EXAMPLE)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def turned(vector: np.ndarray, angles: np.ndarray, *, paired: bool) -> np.ndarray:
    """A head's vector, turned by rotary embedding: neighbours in pairs, or halves."""
    half = len(vector) // 2
    first, second = (vector[0::2], vector[1::2]) if paired else (vector[:half], vector[half:])
    cosine, sine = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cosine - second * sine, first * sine + second * cosine])


def test_turning_pairs_of_the_reordered_rows_gives_the_same_attention(example: ModuleType) -> None:
    generator = np.random.default_rng(0)
    query, key = (generator.normal(size=(16, 5)).astype(np.float32) for _ in range(2))
    at, there = generator.normal(size=(2, 5)).astype(np.float32)
    angles = generator.normal(size=4)
    for head in range(2):
        rows = slice(8 * head, 8 * head + 8)
        halves = turned(query[rows] @ at, angles, paired=False) @ turned(
            key[rows] @ there, 2 * angles, paired=False
        )
        own_query, own_key = example.paired(query, 2)[rows], example.paired(key, 2)[rows]
        pairs = turned(own_query @ at, angles, paired=True) @ turned(
            own_key @ there, 2 * angles, paired=True
        )
        assert pairs == pytest.approx(halves, rel=1e-4)


def test_the_file_holds_every_tensor_and_every_token(example: ModuleType, tmp_path: Path) -> None:
    tiny_corpus(tmp_path / "data")
    tokenizer = Corpus.open(tmp_path / "data").tokenizer
    model = build_model("llama", CONFIG)
    parameters = {name: tensor.data for name, tensor in named_parameters_once(model).items()}
    save_checkpoint(tmp_path / "checkpoint", model, parameters, tokenizer, {"name": "tiny"})
    example.main(tmp_path / "checkpoint", tmp_path / "tiny.gguf")

    reader = gguf.GGUFReader(tmp_path / "tiny.gguf")
    written = {tensor.name: tensor.data for tensor in reader.tensors}
    saved = load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert len(written) == len(saved)
    np.testing.assert_array_equal(written["token_embd.weight"], saved["model.embed_tokens.weight"])
    query = saved["model.layers.0.self_attn.q_proj.weight"]
    np.testing.assert_array_equal(written["blk.0.attn_q.weight"], example.paired(query, 2))
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == CONFIG["vocab_size"] == len(set(tokens))
    assert reader.fields["general.name"].contents() == "tiny"
    assert reader.fields["tokenizer.ggml.merges"].contents()
