"""An operator learns before the run whether its model can be trained."""

import json
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.cli import main
from lockstep.commands import check_run
from lockstep.exit_codes import ExitCode
from lockstep.run_file import run_file_text
from protocol.runfile import ModelSpec, RunSpec, parse_run_file

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "initializer_range": 0.04,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 2,
    "rope_scaling": None,
    "torch_dtype": "bfloat16",
    "vocab_size": 257,
}


def _config(directory: Path, **changes: Any) -> str:
    path = directory / "config.json"
    path.write_text(json.dumps(CONFIG | changes))
    return str(path)


def test_a_published_configuration_becomes_a_run_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    assert main(["init", "--from", _config(tmp_path), str(path)]) == ExitCode.OK
    spec = parse_run_file(path.read_text())
    assert (spec.model.type, spec.model.init_std) == ("llama", 0.04)
    assert spec.model.config["num_key_value_heads"] == 2
    told = capsys.readouterr()
    assert "torch_dtype = 'bfloat16' is left out" in told.err
    assert "parameters, can be trained" in told.out


def test_a_published_model_that_cannot_be_trained_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    changed = _config(tmp_path, num_key_value_heads=5)
    assert main(["init", "--from", changed, str(path)]) == ExitCode.SETTINGS
    assert "num_attention_heads 2 does not fit num_key_value_heads 5" in capsys.readouterr().err
    assert not path.exists()


def test_a_model_larger_than_this_machine_is_only_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    huge = _config(tmp_path, hidden_size=8192, num_hidden_layers=30)
    assert main(["init", "--from", huge, str(tmp_path / "run.toml")]) == ExitCode.OK
    assert "not tried on a sample here" in capsys.readouterr().err


def test_a_run_file_is_checked_without_a_coordinator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(run_file_text(RunSpec()))
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.OK
    sizes = {"hidden_size": 64, "num_attention_heads": 2, "num_hidden_layers": 1}
    model = ModelSpec(type="roberta", config=sizes | {"vocab_size": 257})
    path.write_text(run_file_text(RunSpec(model=model)))
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.SETTINGS
    assert "is_decoder = true makes it causal" in capsys.readouterr().err
    assert [place.name for place in tmp_path.iterdir()] == ["run.toml"]


def test_a_check_says_what_a_start_would_refuse_or_remark(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.toml"
    path.write_text("[rounds]\npayload_bytes_max = 1024")
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.SETTINGS
    assert "payloads of this model reach" in capsys.readouterr().err
    monkeypatch.setattr(check_run, "has_torch", lambda: False)
    path.write_text('[data]\ncorpus = "nonsense"')
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.OK
    told = " ".join(capsys.readouterr().err.split())
    assert "0.825 M parameters" in told
    assert "'nonsense' is not built in: every node must bring it" in told


def gossip_run(path: Path, *lines: str) -> Path:
    path.write_text("\n".join(["[algorithm]", 'name = "gossip-adam"', *lines]))
    return path


def test_a_gossip_adam_run_is_checked_with_the_contraction_of_its_topology(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("[algorithm.mixing]", 'topology = "ring"', "[membership]", "start_members = 5")
    path = gossip_run(tmp_path / "run.toml", *lines)
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.OK
    told = capsys.readouterr().out
    assert "mixing: ring, 5 members: after 2 rounds at most" in told
    assert "parameters, can be trained" in told


def test_payloads_too_small_for_all_parameters_are_found_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = gossip_run(tmp_path / "run.toml", "[rounds]", "payload_bytes_max = 4096")
    assert main(["coordinator", "--check-run", str(path)]) == ExitCode.SETTINGS
    assert "rounds.payload_bytes_max: payloads of this model reach" in capsys.readouterr().err


def test_a_published_model_gets_payloads_that_hold_it_or_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    chosen = ["init", "--algorithm", "gossip-adam", "--from"]
    large = _config(tmp_path, hidden_size=1024, intermediate_size=4096, num_hidden_layers=2)
    assert main([*chosen, large, str(path)]) == ExitCode.OK
    assert parse_run_file(path.read_text()).rounds.payload_bytes_max > 64 * 1024**2
    huge = _config(tmp_path, hidden_size=8192, num_hidden_layers=30)
    assert main([*chosen, huge, "--force", str(path)]) == ExitCode.SETTINGS
    assert "rounds.payload_bytes_max" in capsys.readouterr().err


@pytest.fixture
def tries(monkeypatch: pytest.MonkeyPatch) -> None:
    """As without the test suite's own setting: a new run's model is tried."""
    monkeypatch.delenv("LOCKSTEP_NO_TRY_MODEL")


def start(path: Path, *options: str) -> int:
    """Begins a coordinator that ends once it has begun: its port is taken."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        place = ("--listen", f"127.0.0.1:{taken.getsockname()[1]}", "--admin", "127.0.0.1:0")
        return main(["coordinator", *options, *place, str(path)])


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ('[model]\ntype = "llama"\n[model.config]\nnum_hiden_layers = 4', "close: num_hidden_lay"),
        ("[model.config]\nhidden_size = 127\nnum_attention_heads = 4", "expected a multiple of"),
        ("[model.config]\nvocab_size = 100", "model.config.vocab_size: expected at least 257"),
        (
            "[model.config]\nmax_position_embeddings = 256\n[data]\nsequence_length = 4096",
            "expected at least data.sequence_length",
        ),
        ("[rounds]\npayload_bytes_max = 1024", "payloads of this model reach"),
        ("[model.config]\nhidden_size = 0", "expected a whole number from 1"),
    ],
)
def test_what_arithmetic_can_tell_is_refused_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], lines: str, expected: str
) -> None:
    path = tmp_path / "run.toml"
    path.write_text(lines)
    assert start(path, "--no-try-model") == ExitCode.SETTINGS
    assert expected in capsys.readouterr().err
    assert not path.with_suffix(".coordinator").exists(), "nothing was begun"


def test_a_start_tells_the_size_and_what_nothing_forbids(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[schedule]\nwarmup_steps = 5000\n[data]\ncorpus = "nonsense"')
    start(path, "--no-try-model")
    told = " ".join(capsys.readouterr().err.split())
    assert "0.825 M parameters, a payload of about" in told
    assert "never reaches its largest value" in told
    assert "'nonsense' is not built in: every node must bring it" in told
    path = tmp_path / "other.toml"
    path.write_text('[model]\ntype = "lama"')
    start(path, "--no-try-model")
    assert "model.type 'lama' is not checked here: --no-try-model" in capsys.readouterr().err


@pytest.mark.usefixtures("tries")
def test_a_start_tries_the_model_in_a_process_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\ntype = "lama"')
    assert start(path) == ExitCode.SETTINGS
    assert "expected a model type of transformers" in capsys.readouterr().err
    assert not path.with_suffix(".coordinator").exists()


@pytest.mark.usefixtures("tries")
def test_without_torch_or_for_a_run_that_has_begun_nothing_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "run", never)
    path = tmp_path / "run.toml"
    path.write_text('[model]\ntype = "lama"')
    with monkeypatch.context() as patch:
        patch.setattr(check_run, "has_torch", lambda: False)
        start(path)
        assert "is not checked here: torch is not installed here" in capsys.readouterr().err
        known = tmp_path / "known.toml"
        known.write_text(run_file_text(RunSpec()))
        assert main(["coordinator", "--check-run", str(known)]) == ExitCode.OK
        said = capsys.readouterr().err
        assert "arithmetic alone, not on a sample: torch is not installed here" in said
    assert (tmp_path / "run.coordinator" / "journal.sqlite").exists()
    start(path)
    assert "model.type" not in capsys.readouterr().err
