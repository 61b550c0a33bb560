"""What arithmetic tells of a run file before anybody joins."""

from typing import Any

import pytest

from protocol.errors import SettingsError
from protocol.planner.feasibility import remarks, require_feasible
from protocol.runfile import DataSpec, ModelSpec, RoundsSpec, RunSpec, ScheduleSpec

DEFAULT = RunSpec().model.config


def run_of(model: str = "llama", **config: Any) -> RunSpec:
    return RunSpec(model=ModelSpec(type=model, config=config))


def test_the_default_run_is_feasible_and_has_a_size() -> None:
    found = require_feasible(RunSpec())
    assert found is not None
    assert 0.8e6 < found.parameters < 0.85e6
    assert 36_000 < found.payload_bytes < 37_000
    assert found.state_bytes == 4 * found.parameters, "the parameters alone"
    assert not remarks(RunSpec())


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_size": 127}, "model.config.hidden_size: expected a multiple of"),
        ({"num_key_value_heads": 3}, "model.config.num_attention_heads: expected a multiple of"),
        ({"vocab_size": 256}, "expected at least 257"),
        ({"max_position_embeddings": 64}, "expected at least data.sequence_length = 128"),
        ({"num_hiden_layers": 4}, "no such field .close: num_hidden_layers"),
        ({"num_hidden_layers": "four"}, "expected a whole number"),
        ({"num_hidden_layers": 10**6}, "expected at most 65536 layers"),
        ({"vocab_size": 10**7, "hidden_size": 4096}, "raise it"),
    ],
)
def test_what_no_node_can_train_is_named(changes: dict[str, Any], expected: str) -> None:
    with pytest.raises(SettingsError, match=expected):
        require_feasible(run_of(**(DEFAULT | changes)))


def test_fields_of_its_own_and_a_width_of_heads_are_no_slips() -> None:
    assert require_feasible(run_of(**(DEFAULT | {"rms_norm_eps": 1e-5, "rope_theta": 10_000.0})))
    assert require_feasible(run_of(**(DEFAULT | {"hidden_size": 130, "head_dim": 32})))


def test_of_an_unknown_type_only_what_all_types_have_is_checked() -> None:
    assert require_feasible(run_of("mamba", vocab_size=300)) is None
    with pytest.raises(SettingsError, match="vocab_size"):
        require_feasible(run_of("mamba", vocab_size=100))


def test_gpt2_has_names_of_its_own() -> None:
    sizes = {"n_embd": 96, "n_head": 4, "n_layer": 2, "vocab_size": 257, "n_positions": 128}
    assert require_feasible(run_of("gpt2", **sizes))
    with pytest.raises(SettingsError, match=r"n_embd: expected a multiple of n_head = 5"):
        require_feasible(run_of("gpt2", **(sizes | {"n_head": 5})))
    with pytest.raises(SettingsError, match="n_positions"):
        require_feasible(run_of("gpt2", **(sizes | {"n_positions": 64})))


def test_what_nothing_forbids_is_said() -> None:
    spec = RunSpec(schedule=ScheduleSpec(steps=10, warmup_steps=10), data=DataSpec(corpus="mine"))
    late, own = remarks(spec)
    assert "never reaches its largest value" in late
    assert own.endswith("without data.manifest_sha256 nobody compares")
    named = DataSpec(corpus="mine", manifest_sha256="ab" * 32)
    (own,) = remarks(RunSpec(data=named))
    assert own.endswith("with --data")
    assert not remarks(RunSpec(data=named.model_copy(update={"url": "https://host/mine"})))
    sums = RoundsSpec(sums=9)
    assert not remarks(RunSpec(rounds=sums))
    (unsummed,) = remarks(RunSpec(rounds=sums, model=ModelSpec(type="mamba", config={})))
    assert unsummed.startswith("rounds.sums: expected a model.type whose chunks are known without")
    assert "got 'mamba': no round has summers" in unsummed
    assert unsummed.endswith("choose such a model, or rounds.sums = 0")
    (unlike,) = remarks(RunSpec(data=DataSpec(corpus="python-stdlib")))
    assert "each node's own Python" in unlike
