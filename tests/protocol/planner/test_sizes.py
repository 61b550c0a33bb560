"""Sizes by arithmetic are those of the networks and payloads themselves."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from node.exact.chunks import ChunkLayout
from protocol.codec.differences import rounded
from protocol.codec.parameters import Sent, encode_parameters
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId
from protocol.planner.parameters import Size, size_of
from protocol.planner.payload_bytes import index_bits, mean_bytes, payload_bytes, votes_bytes
from protocol.runfile import AlgorithmSpec, ModelSpec

SMALL = {"vocab_size": 300, "hidden_size": 72, "num_hidden_layers": 2}

MODELS: list[tuple[str, dict[str, Any]]] = [
    ("llama", ModelSpec().config),
    ("llama", SMALL | {"intermediate_size": 100, "num_attention_heads": 4}),
    (
        "llama",
        SMALL
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 20}
        | {"attention_bias": True, "mlp_bias": True, "intermediate_size": 130},
    ),
    ("mistral", SMALL | {"hidden_size": 80, "num_attention_heads": 8, "intermediate_size": 100}),
    (
        "qwen2",
        SMALL
        | {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 96}
        | {"tie_word_embeddings": True},
    ),
    ("gpt2", {"vocab_size": 300, "n_embd": 96, "n_layer": 2, "n_head": 4, "n_positions": 64}),
    ("gpt2", {"n_embd": 64, "n_layer": 1, "n_head": 4, "n_inner": 70}),
    ("gpt_neox", SMALL | {"intermediate_size": 200, "num_attention_heads": 4}),
]


@pytest.mark.parametrize(("kind", "config"), MODELS)
def test_parameters_and_chunks_are_those_of_the_built_network(
    kind: str, config: dict[str, Any]
) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **config))
    layout = ChunkLayout.from_shapes({name: p.shape for name, p in model.named_parameters()})
    found = size_of(ModelSpec(type=kind, config=config))
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.chunks == layout.chunks


def test_a_told_number_of_parameters_stands_in_for_any_model() -> None:
    found = size_of(ModelSpec(type="unheard-of", config={}), 4097)
    assert (found.parameters, found.chunks) == (4097, 2)


def test_other_models_and_wrong_fields_are_named() -> None:
    with pytest.raises(SettingsError, match=r"model.type: expected one of llama.*--parameters"):
        size_of(ModelSpec(type="unheard-of", config={}))
    with pytest.raises(SettingsError, match=r"model.config.hidden_size: expected a whole number"):
        size_of(ModelSpec(config={"hidden_size": "wide"}))
    with pytest.raises(SettingsError, match=r"tie_word_embeddings: expected true or false"):
        size_of(ModelSpec(config={**SMALL, "num_hidden_layers": 1, "tie_word_embeddings": 1}))


@pytest.mark.parametrize(("top_k", "bits"), [(4, 11.14), (8, 10.32), (32, 8.47), (64, 7.50)])
def test_bits_of_an_index_are_those_of_the_design(top_k: int, bits: float) -> None:
    assert index_bits(top_k) == pytest.approx(bits, abs=0.01)


@pytest.mark.parametrize("top_k", [1, 6, 32, 500, 4096])
@pytest.mark.parametrize(("value_bits", "scaled"), [(1, False), (4, False), (1, True), (2, True)])
def test_expected_bytes_are_those_of_encoded_payloads(
    top_k: int, value_bits: int, scaled: bool
) -> None:
    random = np.random.default_rng(top_k)
    shape = PayloadShape(200, top_k, value_bits, scaled)
    rows = [np.sort(random.permutation(4096)[:top_k]) for _ in range(shape.chunks)]
    indices = np.concatenate(rows).astype(np.uint16)
    scales = np.tile(np.array([200, 0], np.uint8), (shape.chunks, 1))
    coefficients = Coefficients(
        np.full(shape.chunks, top_k, np.uint16),
        indices,
        np.ones(len(indices), np.int16),
        (scales if value_bits == 2 else scales[:, 0]) if scaled else None,
    )
    blob = encode(Header(RunId("0" * 32), 300, PeerId("1" * 32)), coefficients, shape)
    assert votes_bytes(shape) == pytest.approx(len(blob), rel=0.01, abs=20)


def test_the_payload_of_the_measured_network_has_the_measured_size() -> None:
    config = {
        "vocab_size": 16384,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "num_hidden_layers": 8,
        "num_attention_heads": 6,
        "tie_word_embeddings": True,
    }
    size = size_of(ModelSpec(config=config))
    assert size.parameters == 20_453_760
    assert votes_bytes(PayloadShape(size.chunks, 32, 1)) == pytest.approx(189_299, rel=0.003)
    assert votes_bytes(PayloadShape(size.chunks, 64, 1)) == pytest.approx(339_477, rel=0.003)


@pytest.mark.parametrize("exchange", ["float32", "float16", "int8"])
def test_payloads_of_parameters_have_the_bytes_of_encoded_ones(exchange: str) -> None:
    algorithm = AlgorithmSpec.model_validate(
        {"name": "gossip-adam", "mixing": {"exchange": exchange}}
    )
    values = np.linspace(-1, 1, 70_001).astype(np.float32)
    sent: Sent = rounded(1, values) if exchange == "int8" else values.astype(exchange)
    header = Header(RunId("0" * 32), 300, PeerId("1" * 32))
    expected = payload_bytes(algorithm, Size(len(values), 18))
    assert expected == pytest.approx(len(encode_parameters(header, sent)), abs=20)
    assert mean_bytes(len(values)) == pytest.approx(len(encode_parameters(header, values)), abs=20)


def test_a_payload_follows_the_algorithm_of_the_run() -> None:
    size = Size(1_000_000, 245)
    votes = payload_bytes(AlgorithmSpec(name="demo", top_k=32), size)
    assert votes == votes_bytes(PayloadShape(245, 32, 1))
    assert payload_bytes(AlgorithmSpec(name="gossip-adam"), size) > 200 * votes
    moves = payload_bytes(AlgorithmSpec(), size)
    assert moves == votes_bytes(PayloadShape(245, 192, 1, True))
