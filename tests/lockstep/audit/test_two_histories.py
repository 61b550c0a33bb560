"""`lockstep verify --proof`: a proof is told from what is none, without a network or a run."""

import json
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from protocol.codec.heads import PROOF_BYTES_MAX, Equivocation
from protocol.handshake import public_bytes
from protocol.ids import RunId
from tests.support.history import History

KEY = Ed25519PrivateKey.from_private_bytes(b"c" * 32)
RUN = RunId("ab" * 16)
HISTORY, OTHER = History(KEY, RUN, 3), History(KEY, RUN, 3, fork=1)


def proof_in(directory: Path, step: int) -> Path:
    proof = Equivocation(RUN, public_bytes(KEY), HISTORY.head(step), OTHER.head(step))
    (directory / "equivocation.json").write_bytes(proof.document())
    return directory / "equivocation.json"


def test_a_proof_is_confirmed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"
    path = str(proof_in(tmp_path, 2))
    assert main(["verify", "--proof", path, "--json", str(found)]) == ExitCode.OK
    words = (
        f"the coordinator's key {public_bytes(KEY).hex()[:16]} has signed two different commits of "
        f"round 2 of run {RUN}"
    )
    assert capsys.readouterr().out == f"Proven: {words}.\n"
    assert json.loads(found.read_text()) == {
        "run_id": RUN,
        "coordinator_key": public_bytes(KEY).hex(),
        "proven": words,
    }


def test_two_commits_that_one_history_has_prove_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = proof_in(tmp_path, 0)
    assert main(["verify", "--proof", str(path)]) == ExitCode.REFUSED
    assert f"{path} proves nothing: expected two different commits" in capsys.readouterr().err


@pytest.mark.parametrize(
    "blob", [b"", b"{}", b" " * (PROOF_BYTES_MAX + 1), b"\x1b[2J", bytes(PROOF_BYTES_MAX)]
)
def test_another_file_proves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], blob: bytes
) -> None:
    path = tmp_path / "other"
    path.write_bytes(blob)
    assert main(["verify", "--proof", str(path)]) == ExitCode.REFUSED
    assert "proves nothing: expected a proof" in capsys.readouterr().err


def test_a_file_that_is_not_there_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", "--proof", str(tmp_path / "none")]) == ExitCode.STORAGE
    assert "found no file" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["somewhere", "--proof", "file"]])
def test_a_run_or_a_proof_is_verified_and_not_both(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", *words]) == ExitCode.USAGE
    assert "--proof" in capsys.readouterr().err
