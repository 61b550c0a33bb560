"""Real runs: a coordinator and nodes as processes, on the device and beside it.

one node       tokens a second from decision to decision, and the part of the card's peak (MFU)
shared card    two nodes on the device and one on the CPU: one digest after every round
"""

import contextlib
import json
import sqlite3
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from coordinator.journal import JOURNAL_NAME
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.presets import at_its_width
from lockstep.run_file import write_run_file
from lockstep.service.keys import load_or_create_key
from lockstep.service.serve import read_note
from lockstep.volunteer.measured import MEASURED_NAME
from node.system.device import choose_device
from protocol.codec.commits import SignedCommit, open_commit
from protocol.handshake import public_bytes
from protocol.planner.parameters import size_of
from protocol.runfile import AlgorithmSpec, RunSpec
from tests.benchmarks.accelerator.cards import flops_per_token, peak_flops
from tests.benchmarks.accelerator.parts import Findings
from tests.benchmarks.accelerator.sizes import Sizes
from tests.support.tiny import tiny_corpus, tiny_spec

POLL_S = 0.2

WARM_ROUNDS = 1
"""Committed rounds before those that are measured: the first one compiles."""

SAMPLES_MAX = 100_000
"""Samples of a round: more than any card trains until the bell, which so ends the round's work."""

SHARED = ("device", "device", "cpu")
"""Where the nodes that share a card compute."""


class DeviceCluster(Cluster):
    """Nodes on devices of one's choice, which find the size of their passes as volunteers' do
    unless `micro_batch` says it.
    """

    def __init__(
        self,
        settings: ClusterSettings,
        devices: tuple[str, ...],
        threads: int,
        micro_batch: int | None = None,
    ) -> None:
        super().__init__(settings)
        for node, device in zip(self.nodes, devices, strict=True):
            words = list(node.arguments)
            words[words.index("--device") + 1] = device
            words[words.index("--threads") + 1] = str(threads)
            place = words.index("--micro-batch")
            words[place : place + 2] = (
                [] if micro_batch is None else ["--micro-batch", str(micro_batch)]
            )
            node.arguments = tuple(words)

    def until_committed(self, rounds: int) -> Iterator[int]:
        """Start, and tell of the rounds committed so far whenever there is another one, until there
        are this many. `RuntimeError` if a process dies.
        """
        self.start()
        seen = 0
        while seen < rounds:
            time.sleep(POLL_S)
            if died := self.watch():
                raise RuntimeError("; ".join(died))
            count = int(self.query("SELECT count(*) FROM commits")[0][0])
            if count > seen:
                seen = count
                yield seen

    def query(self, sql: str) -> list[Any]:
        """Rows of the coordinator's journal."""
        journal = self.coordinator.directory / JOURNAL_NAME
        with contextlib.closing(
            sqlite3.connect(f"{journal.absolute().as_uri()}?mode=ro", uri=True)
        ) as database:
            return database.execute(sql).fetchall()

    def samples(self) -> dict[int, int]:
        """Samples that each commit counts, by round."""
        key = public_bytes(load_or_create_key(self.coordinator.directory))
        rows = self.query("SELECT body, signature, author_list FROM commits ORDER BY round")
        commits = [open_commit(SignedCommit(*row), key) for row in rows]
        return {each.round: sum(entry.samples for entry in each.entries) for each in commits}

    def decided(self) -> dict[int, float]:
        """Instants of the coordinator's decisions, in seconds, by committed round."""
        note = self.coordinator.note()
        assert note, "a coordinator that committed a round has said where it serves"
        with urllib.request.urlopen(f"{note['admin']}/rounds.json", timeout=60) as answer:
            rounds: list[dict[str, Any]] = json.load(answer)["rounds"]
        return {each["round"]: each["decided_at"] for each in rounds if not each["reason"]}


def measure_one_node(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """Tokens a second of a run of one node, from decision to decision and, as the coordinator
    measures them, while the node trains.
    """
    spec = tiny_spec(
        steps=10_000,
        overlap=0,
        members=1,
        algorithm=AlgorithmSpec(local_samples=sizes.local_samples),
        compute_ms=sizes.compute_ms,
        batch_samples_max=SAMPLES_MAX,
        share_samples_first=SAMPLES_MAX,
    )
    data = spec.data.model_copy(update={"sequence_length": sizes.sequence_length})
    spec = at_its_width(spec.model_copy(update={"model": sizes.trained, "data": data}))
    with _cluster(sizes, directory, spec, (sizes.device,)) as cluster:
        for count in cluster.until_committed(WARM_ROUNDS + 1 + sizes.rounds):
            if count > WARM_ROUNDS + 1:
                yield _speed(sizes, spec, cluster)


def _speed(sizes: Sizes, spec: RunSpec, cluster: DeviceCluster) -> Findings:
    decided, samples = cluster.decided(), cluster.samples()
    rounds = sorted(decided.keys() & samples.keys())[WARM_ROUNDS:]
    length, parameters = spec.data.sequence_length, size_of(spec.model).parameters
    flops = flops_per_token(parameters, spec.model.config, length)
    trained = sum(samples[each] for each in rounds[1:])
    tokens_s = trained * length / (decided[rounds[-1]] - decided[rounds[0]])
    node, members = cluster.nodes[0], cluster.coordinator.status.get("members", [])
    samples_s = sum(each["samples_per_second"] for each in members)
    return {
        "parameters": parameters,
        "hardware": node.status.get("hardware"),
        "micro_batch": (read_note(node.directory / MEASURED_NAME) or {}).get("micro_batch"),
        "sequence_length": length,
        "rounds": len(rounds) - 1,
        "samples": trained,
        "flops_per_token": flops,
        "run": against_peak(sizes, tokens_s, flops),
        "while_training": against_peak(sizes, samples_s * length, flops),
    }


def against_peak(sizes: Sizes, tokens_s: float, flops: float) -> Findings:
    """A speed, and the part of the card's peak that it is; None without a card that is known."""
    device = choose_device(sizes.device)
    peak = peak_flops(torch.cuda.get_device_name(device)) if device.type == "cuda" else None
    return {
        "tokens_per_second": round(tokens_s, 1),
        "flops_per_second": tokens_s * flops,
        "mfu": peak and round(tokens_s * flops / peak, 4),
    }


def measure_shared_card(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """Digests of two nodes on the device and one on the CPU, after each round of one run."""
    spec = tiny_spec(
        steps=10_000,
        overlap=0,
        members=len(SHARED),
        quorum=len(SHARED),
        compute_ms=sizes.compute_ms,
        batch_samples_max=SAMPLES_MAX,
    ).model_copy(update={"model": sizes.shared})
    devices = tuple(sizes.device if each == "device" else each for each in SHARED)
    with _cluster(sizes, directory, spec, devices, micro_batch=4) as cluster:
        for count in cluster.until_committed(sizes.rounds + 1):
            if count > 1:
                yield _agreement(cluster)


def _agreement(cluster: DeviceCluster) -> Findings:
    """Of all commits but the newest, of which not every node may have spoken yet."""
    rows = cluster.query(
        "SELECT commits.round, reports, dissent, state_digest FROM commits "
        "LEFT JOIN digests ON digests.round = commits.round ORDER BY commits.round"
    )[:-1]
    return {
        "nodes": [
            {"device": node.status.get("hardware"), "parameters": node.status.get("parameters")}
            for node in cluster.nodes
        ],
        "rounds": [
            {"round": round, "reports": reports, "dissent": dissent, "digest": digest.hex()}
            for round, reports, dissent, digest in rows
        ],
        "agreed": all((row[1], row[2]) == (len(SHARED), 0) for row in rows),
    }


def _cluster(
    sizes: Sizes,
    directory: Path,
    spec: RunSpec,
    devices: tuple[str, ...],
    micro_batch: int | None = None,
) -> DeviceCluster:
    data, run_file = tiny_corpus(directory / "data"), directory / "run.toml"
    write_run_file(run_file, spec, force=True)
    settings = ClusterSettings(directory, run_file, data, nodes=len(devices))
    return DeviceCluster(settings, devices, sizes.threads, micro_batch)
