"""`lockstep verify` on the record of a real run: passes what the log produces, names the first
round that differs.
"""

import asyncio
import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from safetensors.torch import load_file, save_file

from lockstep.audit.records import RecordInFiles
from lockstep.audit.work.published import Accusation
from lockstep.cli import main
from lockstep.exit_codes import ExitCode
from lockstep.service.keys import load_or_create_key
from protocol.codec.commits import SignedCommit, open_commit, sign_commit
from protocol.codec.evidence import CopySource, Evidence, WorkAudit
from protocol.handshake import public_bytes
from protocol.ids import RunId, short
from tests.lockstep.audit.runs import STEPS, coordinator_in, spec_of
from tests.node.test_process import NodeTask
from tests.support.tiny import tiny_corpus
from tests.support.waiting import PATIENCE_SECONDS, until


@pytest.fixture
def record(finished: Path, tmp_path: Path) -> Path:
    """A copy to tamper with."""
    return Path(shutil.copytree(finished, tmp_path / "record"))


def journal(record: Path) -> closing[sqlite3.Connection]:
    path = record / "coordinator" / "journal.sqlite"
    return closing(sqlite3.connect(path, isolation_level=None))


def verified(*arguments: object) -> int:
    return main(["verify", *map(str, arguments), "--threads", "1"])


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    return line


def flip(path: Path) -> None:
    blob = bytearray(path.read_bytes())
    blob[-1] ^= 1
    path.write_bytes(blob)


def test_a_demos_directory_verifies_with_its_checkpoint(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert verified(finished) == ExitCode.OK
    line = " ".join(capsys.readouterr().out.split())
    assert line.startswith(
        f"verified: {STEPS} commits up to round {STEPS - 1} are signed and linked; "
        f"all {STEPS} were replayed from genesis and lead to state "
    )
    assert f"members reported the same state in {STEPS} rounds; " in line
    assert line.endswith(f"equals the state of the log at round {STEPS - 1}")


def test_the_findings_are_the_same_with_other_threads_and_from_the_coordinators_directory(
    finished: Path, tmp_path: Path
) -> None:
    documents = []
    for number, (target, threads) in enumerate(((finished, 1), (finished / "coordinator", 2))):
        path = tmp_path / f"{number}.json"
        assert (
            main(["verify", str(target), "--threads", str(threads), "--json", str(path)])
            == ExitCode.OK
        )
        document = json.loads(path.read_text())
        assert document.pop("seconds") > 0
        documents.append(document | {"checkpoint": None})
    torch.set_num_threads(1)
    assert documents[0] == documents[1]
    assert documents[0]["verified"]
    assert documents[0]["first_difference"] is None
    assert (documents[0]["replayed"], documents[0]["digests_compared"]) == (STEPS, STEPS)


def test_from_a_recorded_snapshot_only_the_rest_is_replayed_and_it_says_so(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [snapshot] = (finished / "node-1" / "snapshots").glob("5-*")
    path = tmp_path / "found.json"
    payloads = Path(shutil.copytree(finished / "node-1" / "payloads", tmp_path / "payloads"))
    shutil.rmtree(payloads / "0")
    assert (
        verified(finished, "--from", snapshot, "--payloads", payloads, "--json", path)
        == ExitCode.OK
    )
    document = json.loads(path.read_text())
    assert (document["commits"], document["replayed"]) == (STEPS, STEPS - 6)
    line = " ".join(capsys.readouterr().out.split())
    assert "rounds 6 to 7 (2 commits) were replayed from the snapshot of round 5, whose" in line
    assert document["checkpoint"].endswith(f"equals the state of the log at round {STEPS - 1}")


def test_a_snapshot_that_no_commit_records_is_refused(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    [snapshot] = (record / "node-1" / "snapshots").glob("5-*")
    flip(snapshot)
    assert verified(record, "--from", snapshot) == ExitCode.REFUSED
    assert "no commit records a snapshot with SHA-256" in error_line(capsys)


def test_one_flipped_byte_in_a_payload_names_its_round_and_file(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "found.json"
    name = sorted((record / "node-0" / "payloads" / "4").iterdir())[0].name
    for node in ("node-0", "node-1"):
        flip(record / node / "payloads" / "4" / name)
    assert verified(record, "--json", path) == ExitCode.REFUSED
    line = error_line(capsys)
    assert "the first difference is in round 4" in line
    assert name in line
    document = json.loads(path.read_text())
    assert document["first_difference"]["round"] == 4
    assert not document["verified"]
    assert (record / "node-0" / "payloads" / "4" / name).exists(), "the evidence stays"


def test_published_evidence_of_a_copy_is_compared_again(
    record: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with journal(record) as database:
        rows = database.execute("SELECT body, signature FROM commits ORDER BY round").fetchall()
    key = public_bytes(load_or_create_key(record / "coordinator"))
    before, after = (open_commit(SignedCommit(*row), key).entries[0] for row in rows[3:5])
    source = CopySource(before.author, 3, before.digest)
    audit = WorkAudit(4, after.digest, 9900, 200, source)
    said = Evidence(RunId("0" * 32), after.author, "copied work", (audit,))

    async def evidence(_: RecordInFiles) -> list[Accusation]:
        return [Accusation(said, b"")]

    monkeypatch.setattr(RecordInFiles, "evidence", evidence)
    assert verified(record) == ExitCode.REFUSED
    line = error_line(capsys)
    assert f"evidence against {short(after.author)} names payload" in line
    assert "of round 4 as 99.00% copied, the comparison says" in line


def test_a_payload_damaged_at_one_node_is_read_from_another(record: Path) -> None:
    for path in (record / "node-0" / "payloads" / "4").iterdir():
        flip(path)
    assert verified(record) == ExitCode.OK


def test_a_payload_that_is_nowhere_is_named_and_is_no_difference(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(record / "node-0" / "payloads" / "3")
    assert verified(record, "--payloads", record / "node-0" / "payloads") == ExitCode.STORAGE
    line = error_line(capsys)
    assert "for round 3" in line
    assert "--payloads" in line


def test_a_commit_in_anothers_place_names_the_round(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with journal(record) as database:
        database.execute(
            "UPDATE commits SET (body, signature) = "
            "(SELECT body, signature FROM commits WHERE round = 5) WHERE round = 3"
        )
    assert verified(record) == ExitCode.REFUSED
    line = error_line(capsys)
    assert "the first difference is in round 3" in line
    assert "does not follow" in line


def test_a_commit_that_another_key_signed_names_the_round(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    key = public_bytes(load_or_create_key(record / "coordinator"))
    with journal(record) as database:
        row = database.execute("SELECT body, signature FROM commits WHERE round = 2").fetchone()
        forged = sign_commit(open_commit(SignedCommit(*row), key), Ed25519PrivateKey.generate())
        database.execute("UPDATE commits SET signature = ? WHERE round = 2", (forged.signature,))
    assert verified(record) == ExitCode.REFUSED
    line = error_line(capsys)
    assert "round 2" in line
    assert "signed by this run's coordinator" in line


def test_another_recorded_digest_names_the_first_round_that_differs(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with journal(record) as database:
        database.execute("UPDATE digests SET state_digest = ? WHERE round >= 6", (bytes(8),))
    assert verified(record) == ExitCode.REFUSED
    assert "the first difference is in round 6: the replay leads to state" in error_line(capsys)


def test_a_checkpoint_with_one_other_weight_is_not_what_the_log_produces(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = record / "checkpoint" / "model.safetensors"
    tensors = load_file(weights)
    next(iter(tensors.values())).view(-1)[0] += 1e-3
    save_file(tensors, weights, {"format": "pt"})
    assert verified(record, "--checkpoint", record / "checkpoint") == ExitCode.REFUSED
    line = error_line(capsys)
    assert f"round {STEPS - 1}" in line
    assert "does not hold the parameters that the log produces" in line


@pytest.mark.parametrize(
    ("claimed", "words"),
    [(4, "does not hold the parameters"), (99, "without a commit of that round")],
)
def test_a_checkpoint_that_claims_another_round_is_not_believed(
    record: Path, capsys: pytest.CaptureFixture[str], claimed: int, words: str
) -> None:
    about = record / "checkpoint" / "lockstep.json"
    document = json.loads(about.read_text())
    document["metadata"]["round"] = claimed
    about.write_text(json.dumps(document))
    assert verified(record) == ExitCode.REFUSED
    line = error_line(capsys)
    assert f"round {claimed}" in line
    assert words in line


def test_a_checkpoint_of_another_run_is_refused(
    record: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    about = record / "checkpoint" / "lockstep.json"
    document = json.loads(about.read_text())
    document["metadata"]["run_id"] = "0" * 32
    about.write_text(json.dumps(document))
    assert verified(record) == ExitCode.REFUSED
    assert "expected a checkpoint of run" in error_line(capsys)


def test_another_coordinator_s_key_and_a_missing_journal_are_errors_that_name_them(
    record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (record / "coordinator" / "key.pem").unlink()
    load_or_create_key(record / "coordinator")
    assert verified(record) == ExitCode.SETTINGS
    assert "expected the key and the run file of run" in error_line(capsys)
    assert verified(tmp_path) == ExitCode.USAGE
    assert "found no journal.sqlite" in error_line(capsys)


def test_an_unreachable_coordinator_ends_with_4() -> None:
    assert verified("127.0.0.1:1") == ExitCode.UNREACHABLE


async def test_a_live_run_is_verified_over_the_network(tmp_path: Path) -> None:
    data = tiny_corpus(tmp_path / "data")
    coordinator = coordinator_in(tmp_path, spec_of(10_000))
    await coordinator.start()
    path = tmp_path / "found.json"
    try:
        nodes = [NodeTask(coordinator.address, tmp_path, data, number) for number in range(2)]
        async with nodes[0], nodes[1]:
            await until(lambda: coordinator.status()["steps"]["committed"] >= STEPS)
            command = [
                sys.executable,
                "-m",
                "lockstep",
                "verify",
                coordinator.address,
                "--threads",
                "1",
                "--json",
                path,
            ]
            process = await asyncio.create_subprocess_exec(
                *map(str, command), stderr=asyncio.subprocess.PIPE
            )
            async with asyncio.timeout(PATIENCE_SECONDS):
                _, said = await process.communicate()
            members = [member["name"] for member in coordinator.status()["members"]]
    finally:
        await coordinator.stop()
    assert process.returncode == ExitCode.OK, said.decode()
    document = json.loads(path.read_text())
    assert document["verified"]
    assert document["replayed"] >= STEPS
    assert "verify" not in members, "it left"
