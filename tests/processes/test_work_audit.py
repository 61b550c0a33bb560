"""A run of real processes in which one node sends noise, or what others have sent: the auditor that
the operator has named finds it, it loses its standing, and the honest nodes are not touched. Where
summers add, the auditor joins the payloads from their parts, and finds both.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.cluster.child import Child
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.run_file import write_run_file
from node.data.corpus import read_manifest
from protocol.planner.sums import SUMMED
from protocol.sections.algorithm import AlgorithmSpec
from tests.processes.operating import operate
from tests.processes.summing import SUMS, commits_of
from tests.processes.test_auditor_word import GOODBYE_S
from tests.processes.watching import committed, watch_until
from tests.support.tiny import tiny_corpus, tiny_spec

HONEST = 3
OTHER_WORK, COPIED_WORK = "other work", "copied work"
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
STEPS = 100_000
"""The run does not come to its end by itself."""

PATIENCE_S = 480.0
"""Longer than anything takes on a machine that others use too."""


DEMO = AlgorithmSpec(name="demo", top_k=64)
LOCAL_STEPS = AlgorithmSpec(name="local_steps", top_k=192, local_samples=4)


def run_file(directory: Path, data: Path, algorithm: AlgorithmSpec, **rounds: int) -> Path:
    """A run without overlap whose file names its data."""
    spec = tiny_spec(steps=STEPS, overlap=0, quorum=2, share_samples_first=16, **rounds)
    manifest = read_manifest(data).digest.hex()
    path = directory / "run.toml"
    write_run_file(
        path,
        spec.model_copy(
            update={
                "algorithm": algorithm,
                "data": spec.data.model_copy(update={"manifest_sha256": manifest}),
            }
        ),
        force=True,
    )
    return path


def dishonest(kind: str, directory: Path, data: Path, address: str) -> subprocess.Popen[bytes]:
    place = directory / kind
    place.mkdir()
    options = ["--directory", str(place), "--data", str(data), "--admin", "127.0.0.1:0"]
    options += ["--listen", "127.0.0.1:0", "--nice", "0"]  # as the honest nodes have it
    command = [sys.executable, "-m", "tests.processes.dishonest_node", kind, address, *options]
    with (place / "log.txt").open("wb") as log:
        return subprocess.Popen(
            [*command, "--device", "cpu", "--threads", "1", "--name", kind],
            stdout=log,
            stderr=log,
            env=ENVIRONMENT,
        )


class Audited:
    """A run with dishonest nodes, and an auditor that the operator has named."""

    def __init__(self, cluster: Cluster, auditor: Child) -> None:
        self.cluster, self._auditor = cluster, auditor
        self._members: dict[str, dict[str, Any]] = {}
        """By key: what was told last, of those that are away for a moment too."""

    @property
    def key(self) -> str:
        """The auditor's; empty until it says it."""
        self._auditor.refresh()
        return str(self._auditor.status.get("peer_id") or "")

    @property
    def audit(self) -> dict[str, Any]:
        """What the auditor says of its audit."""
        self._auditor.refresh()
        return dict(self._auditor.status["audit"])

    def members(self) -> dict[str, dict[str, Any]]:
        """The members by key."""
        told = self.cluster.coordinator.status["members"]
        self._members |= {each["peer_id"]: each for each in told}
        return self._members

    def demoted(self) -> dict[str, dict[str, Any]]:
        """The evidence against those that lost their standing, by name."""
        self.cluster.coordinator.refresh()
        members = self.members()
        found = (self.cluster.coordinator.status.get("audit") or {}).get("demoted", ())
        return {members[each["peer_id"]]["name"]: each for each in found}

    def await_evidence(self, kinds: Collection[str]) -> dict[str, dict[str, Any]]:
        """The evidence against the nodes of these kinds: they lose their standing, nobody else
        does, and the run goes on.
        """
        cluster = self.cluster
        watch_until(cluster, lambda: self.demoted().keys() >= set(kinds), "evidence", PATIENCE_S)
        after = committed(cluster)
        watch_until(cluster, lambda: committed(cluster) > after + 10, "further commits")
        found, members = self.demoted(), self.members()
        assert found.keys() == set(kinds)
        acts = operate(cluster.coordinator.directory.parent, "audit")
        for each in found.values():
            member = members[each["peer_id"]]
            assert member["state"] == "muted"
            assert each["reason"] in member["reason"]
            assert f"demote {each['peer_id']} by auditor {self.key}: work audit" in acts
            assert len(each["audits"]) >= 3
            for audit in each["audits"] if each["finding"] == OTHER_WORK else ():
                assert audit["expected"] > 0.57
                assert audit["agreement"] - 0.5 < (audit["expected"] - 0.5) / 2
        honest = [each for each in members.values() if each["name"] not in kinds]
        assert [each["standing"] for each in honest] == [""] * HONEST
        return found

    def verified(self, data: Path) -> str:
        """What `lockstep verify` says that computes all evidence again."""
        operate(self.cluster.coordinator.directory.parent, "pause")  # a replay beside a run is slow
        command = [sys.executable, "-m", "lockstep", "verify", self.cluster.address]
        checked = subprocess.run(
            [*command, "--work", str(data)],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=ENVIRONMENT,
        )
        assert checked.returncode == 0, checked.stderr
        return checked.stdout


@contextlib.contextmanager
def audited(directory: Path, data: Path, file: Path, kinds: Collection[str]) -> Iterator[Audited]:
    """A run of honest nodes, and of dishonest ones of these kinds."""
    place = directory / "auditor"
    options = ["--listen", "127.0.0.1:0", "--threads", "1", "--admin", "127.0.0.1:0"]
    # Rounds of a tiny network are too short for 2 % of them to hold an audit in time for a test.
    options += ["--data", str(data), "--work-share", "40"]
    auditor = Child("auditor", place, ["auditor", "--directory", str(place), *options], ENVIRONMENT)
    with (
        Cluster(ClusterSettings(directory, file, data, nodes=HONEST)) as cluster,
        contextlib.ExitStack() as stack,
    ):
        cluster.start()
        for kind in kinds:
            other = dishonest(kind, directory, data, cluster.address)
            stack.callback(other.wait)
            stack.callback(other.kill)
        auditor.start(cluster.address)
        stack.callback(lambda: auditor.wait(time.monotonic() + GOODBYE_S))
        stack.callback(auditor.ask_to_leave)
        run = Audited(cluster, auditor)
        watch_until(
            cluster,
            lambda: run.key and "lockstep run auditor add" in auditor.log.read_text(),
            "an auditor that says how it is named",
        )
        operate(directory, "auditor", "add", run.key)
        yield run


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "kind", "finding", "words"),
    [
        (DEMO, "noise", OTHER_WORK, "audits of work came out as published"),
        (DEMO, "copies", COPIED_WORK, "copies came out as published"),
        (LOCAL_STEPS, "noise", OTHER_WORK, "audits of work came out as published"),
    ],
    ids=["noise", "copies", "noise beside local steps"],
)
def test_a_dishonest_node_is_found_and_demoted_and_honest_nodes_are_not(
    algorithm: AlgorithmSpec, kind: str, finding: str, words: str, tmp_path: Path
) -> None:
    data = tiny_corpus(tmp_path / "data")
    file = run_file(tmp_path, data, algorithm, members=HONEST + 1, batch_samples_max=64)
    with audited(tmp_path, data, file, [kind]) as run:
        found = run.await_evidence([kind])[kind]
        assert found["finding"] == finding
        assert f"{len(found['audits'])} {words}" in run.verified(data)


@pytest.mark.slow
def test_noise_and_copies_are_found_where_summers_add_and_honest_nodes_are_not(
    tmp_path: Path,
) -> None:
    data = tiny_corpus(tmp_path / "data")
    rounds = {"members": HONEST + 2, "batch_samples_max": 80, "sums": SUMS}
    file = run_file(tmp_path, data, LOCAL_STEPS.model_copy(update=SUMMED), **rounds)
    with audited(tmp_path, data, file, ["noise", "copies"]) as run:
        found = run.await_evidence(["noise", "copies"])
        said = run.verified(data)
        run.cluster.coordinator.refresh()
        assert run.cluster.coordinator.status["digests"]["rounds_disputed"] == 0
        assert run.audit["rounds_different"] == 0
    assert found["noise"]["finding"] == OTHER_WORK
    # Honest payloads of so small a network are much alike. So likeness tells the copier where it
    # has copied the noise, and its work where it has copied an honest author.
    assert found["copies"]["finding"] in (COPIED_WORK, OTHER_WORK)
    for finding, words in (
        (OTHER_WORK, "audits of work came out as published"),
        (COPIED_WORK, "copies came out as published"),
    ):
        audits = [each["audits"] for each in found.values() if each["finding"] == finding]
        assert not audits or f"{sum(map(len, audits))} {words}" in said
    added = {commit.round for commit in commits_of(run.cluster) if commit.sums}
    assert added.issuperset(audit["round"] for each in found.values() for audit in each["audits"])
