"""Two nodes of a run of real processes sign wrong sums, and where both add one range it is applied:
the auditor that the operator names finds them, and `lockstep verify` names them afterwards.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from coordinator.journal import RecordedCommit
from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from protocol.ids import PeerId
from tests.processes.operating import operate
from tests.processes.summing import added_again, recorded, summing_spec
from tests.processes.watching import PATIENCE_S, committed, watch_until
from tests.support.tiny import tiny_corpus

HONEST, LIARS = 4, 2
GOODBYE_S = 30.0
STEPS = 100_000
"""The run does not come to its end by itself."""

LIES = 8
"""Commits before anybody is accused: one range in 15 has both liars, and a round has 8 or more."""


def lying(directory: Path, data: Path, address: str, number: int) -> subprocess.Popen[bytes]:
    place = directory / f"liar-{number}"
    place.mkdir()
    options = ["--directory", str(place), "--data", str(data), "--admin", "127.0.0.1:0"]
    options += ["--listen", "127.0.0.1:0", "--device", "cpu", "--threads", "1"]
    command = [sys.executable, "-m", "tests.processes.dishonest_node", "sums", address, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (place / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [*command, "--name", f"liar-{number}"], stdout=log, stderr=log, env=environment
        )


def signers(commits: list[RecordedCommit]) -> set[PeerId]:
    return {each.summer for commit in commits for each in commit.signed_sums}


@pytest.mark.slow
def test_liars_are_found_by_the_auditor_are_drawn_no_more_and_verify_names_them(
    tmp_path: Path,
) -> None:
    data, run_file = tiny_corpus(tmp_path / "data"), tmp_path / "run.toml"
    spec = summing_spec(steps=STEPS, members=HONEST + LIARS, share_samples_first=4)
    write_run_file(run_file, spec, force=True)
    place = tmp_path / "auditor"
    options = ["--listen", "127.0.0.1:0", "--threads", "1", "--admin", "127.0.0.1:0"]
    options += ["--sums-share", "50"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    auditor = Child("auditor", place, ["auditor", "--directory", str(place), *options], environment)
    with (
        Cluster(ClusterSettings(tmp_path, run_file, data, nodes=HONEST)) as cluster,
        contextlib.ExitStack() as stack,
    ):
        cluster.start()
        for number in range(LIARS):
            liar = lying(tmp_path, data, cluster.address, number)
            stack.callback(liar.wait)
            stack.callback(liar.kill)
        auditor.start(cluster.address)
        stack.callback(lambda: auditor.wait(time.monotonic() + GOODBYE_S))
        stack.callback(auditor.ask_to_leave)

        def found() -> dict[str, Any]:
            auditor.refresh()
            return dict((auditor.status.get("audit") or {}).get("sums") or {})

        def demoted() -> dict[str, dict[str, Any]]:
            cluster.coordinator.refresh()
            said = (cluster.coordinator.status.get("audit") or {}).get("demoted", ())
            return {each["peer_id"]: each for each in said}

        watch_until(cluster, lambda: committed(cluster) >= LIES, "wrong sums", PATIENCE_S)
        watch_until(cluster, lambda: found().get("wrong"), "a wrong sum that is found", PATIENCE_S)
        assert not demoted(), "nobody has named the auditor"
        operate(tmp_path, "auditor", "add", str(auditor.status["peer_id"]))
        watch_until(cluster, lambda: len(demoted()) == LIARS, "both liars", PATIENCE_S)
        liars = demoted()
        assert not liars.keys() & {node.status["peer_id"] for node in cluster.nodes}
        assert {each["finding"] for each in liars.values()} == {"wrong sum"}
        assert all("sum audit: signed " in each["reason"] for each in liars.values())
        after = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) > after + 5, "further commits", PATIENCE_S)
        assert len(demoted()) == LIARS
        assert cluster.coordinator.status["digests"]["rounds_disputed"] == 0
        told = (tmp_path / "liar-0" / "log.txt").read_text()
        assert "sum audit: signed " in told, "its owner hears why"
        cluster.stop()
    commits = recorded(cluster)
    assert liars.keys() <= signers(commits[:after])
    assert not liars.keys() & signers(commits[-3:]), "the newest were opened without them"
    assert signers(commits[-3:])
    verified = added_again(cluster)
    said = " ".join((verified.stdout + verified.stderr).split())
    assert verified.returncode == ExitCode.REFUSED, said
    one, other = sorted(liars)
    assert f"signed by {one} and {other}, whom the operator excludes by" in said
    assert f"lockstep run ban {one}; lockstep run ban {other}" in said
