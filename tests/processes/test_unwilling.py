"""A third of the vouched nodes serves its payloads badly, in a public run of real processes."""

import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tests.processes.strangers.run import PublicRun, Watch
from tests.processes.watching import watch_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEPT = 0.85
"""Payloads of the willing nodes that must be counted, of those in quiet times."""

PHASE_S, TURNS = 20.0, 3


CONDUCTS = {"withholds": "nobody could get", "drops": "links to it break"}
"""Conducts, and what the status says of a node that has one."""


@pytest.mark.parametrize("conduct", CONDUCTS)
def test_a_third_that_serves_badly_costs_the_others_little_and_is_named(
    conduct: str, tmp_path: Path
) -> None:
    file, run = tmp_path / "conduct", PublicRun(tmp_path)
    unwilling = run.cluster.nodes[-1]
    peer, spawn = run.honest.pop(), unwilling._spawn

    def other(command: list[str], log: IO[bytes]) -> object:
        module = [sys.executable, "-m", "tests.processes.unwilling_node", str(file)]
        return spawn([*module, *command[3:]], log)

    unwilling._spawn = other  # type: ignore[method-assign, assignment]
    with run, Watch(run) as watch:
        quiet, meanwhile = [pace(watch)], list[float]()
        for _ in range(TURNS):
            file.write_text(conduct)
            watch_until(run.cluster, lambda: CONDUCTS[conduct] in remark(run, peer), "a remark")
            meanwhile.append(pace(watch))
            file.unlink()
            watch_until(run.cluster, lambda: not remark(run, peer), "no remark any more")
            quiet.append(pace(watch))
            if kept(meanwhile, quiet) >= KEPT:
                break
        assert kept(meanwhile, quiet) >= KEPT, (quiet, meanwhile)
        assert run.faults() == []
        assert not any(remark(run, other) for other in run.honest)


def kept(meanwhile: list[float], quiet: list[float]) -> float:
    return (sum(meanwhile) / len(meanwhile)) / (sum(quiet) / len(quiet))


def pace(watch: Watch) -> float:
    """Payloads of the willing nodes that are counted in a second."""
    since_s = time.monotonic()
    time.sleep(PHASE_S)
    watch.wait_for_commit(until_s := time.monotonic(), PHASE_S)
    return watch.pace(since_s, until_s).honest


def remark(run: PublicRun, peer: str) -> str:
    members = run.status()["members"]
    return next((str(each["remark"]) for each in members if each["peer_id"] == peer), "")
