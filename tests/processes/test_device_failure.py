"""A real node whose graphics card fails three times: it comes back twice and counts again, then
ends with the code of a failed device. The others lose nothing.
"""

import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import msgspec
import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from lockstep.volunteer.anew import FAILURES_NAME, PAUSES_S
from tests.processes.watching import PATIENCE_S
from tests.support.tiny import tiny_corpus, tiny_spec


class FailingNode(Child):
    """A node whose device fails in each of its processes."""

    def __init__(self, child: Child) -> None:
        super().__init__(child.name, child.directory, child.arguments, child.environment)

    def _spawn(self, command: Sequence[str], log: IO[bytes]) -> "subprocess.Popen[bytes]":
        python, option, _, *rest = command
        return super()._spawn([python, option, "tests.processes.failing_device", *rest], log)


@pytest.mark.slow
def test_a_node_whose_card_fails_counts_again_twice_and_then_ends_with_a_code_of_its_own(
    tmp_path: Path,
) -> None:
    run_file, data = tmp_path / "run.toml", tiny_corpus(tmp_path / "data")
    write_run_file(run_file, tiny_spec(steps=1_000_000, quorum=1), force=True)
    with Cluster(ClusterSettings(tmp_path, run_file, data, nodes=2)) as cluster:
        failing = cluster.nodes[1] = FailingNode(cluster.nodes[1])
        cluster.start()
        deadline_s = time.monotonic() + PATIENCE_S
        while failing.exit_status is None:
            assert time.monotonic() < deadline_s, failing.last_words()
            time.sleep(0.1)
        cluster.coordinator.refresh()
    said = failing.log.read_text()
    assert failing.exit_status == ExitCode.DEVICE, said
    assert failing.last_words().startswith(
        "error: the device failed: CUDA error: unknown error; it failed 3 times in an hour: look at"
    )
    assert said.count("begins anew in") == len(PAUSES_S) == 2
    assert said.count("counted before it failed") == 3
    for loss in ("older state", "saved state cannot be used", "training after the last save"):
        assert loss not in said
    failures = msgspec.json.decode((failing.directory / FAILURES_NAME).read_bytes())
    assert len(failures["at_s"]) == 3
    status = cluster.coordinator.status
    assert status["digests"]["agreed"]
    assert status["digests"]["rounds_disputed"] == 0
    told = cluster.coordinator.log.read_text()
    assert told.count('reason="the device failed: CUDA error: unknown error"') == 3, told
