"""The summary of a finished cluster: one document, with every figure counted or evaluated.

    traffic.payload_bytes           mean size of a committed payload: one node, one round
    traffic.bits_per_value          size of that payload with its container, per transmitted value
    traffic.payload_*_bytes_per_node_round
                                    bytes of payloads on the nodes' lines, over nodes and rounds
    traffic.other_*_bytes           all else on all nodes' lines, in the whole run: checkpoints of
                                    the model, catching up, control, overhead
    traffic.dense_bf16_bytes        size of a dense bfloat16 gradient
    traffic.times_less_than_dense   dense_bf16_bytes over payload bytes uploaded per node and round

The last one counts real uploads: among R nodes a payload travels R - 1 times. A comparison that
counts each payload once would look R - 1 times better.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lockstep.cluster.child import Child
from lockstep.cluster.live_table import Show, total_bytes
from lockstep.cluster.local import Cluster
from lockstep.console import bytes_text
from node.data.corpus import Corpus
from node.model.build import build_model
from node.model.evaluate import evaluate_checkpoint
from node.model.training import TrainingModel
from node.replica.genesis import fill
from protocol.errors import LocalProtocolError
from protocol.runfile import RunSpec

POLL_S = 0.5
"""Time from one look at a cluster to the next."""

VALIDATION_SAMPLES = 64
"""Number of fixed windows on which genesis and final checkpoint are evaluated."""


@dataclass(frozen=True, slots=True)
class FinishedRun:
    """Last statuses and losses of a cluster whose run is over."""

    nodes: int
    """Number of node processes that were meant to run."""

    coordinator: Mapping[str, Any]
    """The coordinator's last status."""

    node_statuses: Sequence[Mapping[str, Any]]
    """Last status of every node process, also of those that died: each counts its own traffic."""

    losses: Mapping[int, float]
    """Training loss by committed round, in nats per token."""

    seconds: float
    """Time from the start of the first process to the end of the last."""


def run_to_its_end(cluster: Cluster, shown: AbstractContextManager[Show]) -> FinishedRun:
    """Starts a cluster and shows it until its run is over; every way out stops all processes."""
    started_s = time.monotonic()
    losses: dict[int, float] = {}
    with cluster:
        cluster.start()
        with shown as show:
            while not cluster.finished:
                show(cluster.watch())
                losses |= _losses(cluster.coordinator.status)
                time.sleep(POLL_S)
        cluster.wait()
        losses |= _losses(cluster.coordinator.status)
    statuses = [status for node in cluster.nodes for status in (*node.earlier, node.status)]
    seconds = time.monotonic() - started_s
    return FinishedRun(len(cluster.nodes), cluster.coordinator.status, statuses, losses, seconds)


def _losses(status: Mapping[str, Any]) -> dict[int, float]:
    """Training loss by round, in nats per token, of the commits that a coordinator's status
    shows.
    """
    commits = status.get("last_commits", ())
    return {commit["round"]: commit["loss"] for commit in commits if commit.get("loss") is not None}


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """The model before and after training, on the same validation windows."""

    parameters: int
    """Trainable parameters, tied ones once."""

    genesis: float
    """Validation loss of the initial state, in nats per token."""

    final: float
    """Validation loss of the final checkpoint, in nats per token."""


def a_checkpoint(nodes: Sequence[Child]) -> Path:
    """The checkpoint of the first node that has one; all are equal. `LocalProtocolError` if none
    has.
    """
    for node in nodes:
        if (checkpoint := node.directory / "checkpoint").is_dir():
            return checkpoint
    raise LocalProtocolError(
        f"expected a checkpoint in {nodes[0].directory}, found none: {nodes[0].last_words()}"
    )


def evaluate(spec: RunSpec, data: Path, checkpoint: Path) -> MeasuredLoss:
    """Evaluates the genesis and the final checkpoint of a run."""
    corpus = Corpus.open(data, verify=False)
    samples = corpus.validation(VALIDATION_SAMPLES, spec.data.sequence_length)
    genesis = build_model(spec.model.type, spec.model.config)
    fill(genesis, spec.seed, spec.model.init_std)
    trainee = TrainingModel(genesis)
    parameters = sum(parameter.numel() for parameter in trainee.parameters.values())
    final = evaluate_checkpoint(
        checkpoint, corpus, samples=VALIDATION_SAMPLES, sequence_length=spec.data.sequence_length
    )
    return MeasuredLoss(parameters, trainee.evaluate(samples), final)


def summary(spec: RunSpec, finished: FinishedRun, evaluation: MeasuredLoss) -> dict[str, Any]:
    """The document of `lockstep demo --json`; `LocalProtocolError` when the run has no committed
    round.
    """
    coordinator, losses = finished.coordinator, finished.losses
    if not losses:
        raise LocalProtocolError(
            f"the run ended without a committed round: {coordinator.get('reason') or 'no status'}"
        )
    steps, digests = coordinator["steps"], coordinator["digests"]
    return {
        "run_id": coordinator["run_id"],
        "nodes": finished.nodes,
        "parameters": evaluation.parameters,
        "tokens": coordinator["data"]["samples_trained"] * spec.data.sequence_length,
        "rounds": {"committed": steps["committed"], "skipped": steps["skipped"]},
        "loss": {
            "first": losses[min(losses)],
            "last": losses[max(losses)],
            "validation_first": evaluation.genesis,
            "validation_last": evaluation.final,
        },
        "digests": {name: digests[name] for name in ("agreed", "rounds_checked", "last")},
        "consensus": coordinator.get("consensus"),
        "traffic": traffic(finished, evaluation.parameters),
        "seconds": round(finished.seconds, 1),
    }


def traffic(finished: FinishedRun, parameters: int) -> dict[str, float]:
    """Traffic between the nodes; the top of this module defines the figures."""
    committed = finished.coordinator["traffic"]
    rounds = sum(finished.coordinator["steps"][fate] for fate in ("committed", "skipped"))
    counts = [status.get("traffic", {}) for status in finished.node_statuses]
    payload = {
        way: sum(count.get(f"payload_{way}_bytes", 0) for count in counts) for way in ("up", "down")
    }
    other = {
        way: sum(total_bytes(count, way) for count in counts) - payload[way] for way in payload
    }
    sizes = [status.get("payload", {}).get("bits_per_value") for status in finished.node_statuses]
    bits = [size for size in sizes if size is not None]
    dense = 2 * parameters
    node_rounds = finished.nodes * rounds
    return {
        "payload_bytes": round(committed["payload_bytes"] / committed["payloads"]),
        "bits_per_value": round(sum(bits) / len(bits), 3) if bits else 0.0,
        "payload_up_bytes_per_node_round": round(payload["up"] / node_rounds),
        "payload_down_bytes_per_node_round": round(payload["down"] / node_rounds),
        "other_up_bytes": other["up"],
        "other_down_bytes": other["down"],
        "dense_bf16_bytes": dense,
        "times_less_than_dense": (
            round(dense * node_rounds / payload["up"], 1) if payload["up"] else 0.0
        ),
    }


def traffic_lines(traffic: Mapping[str, float]) -> tuple[str, str]:
    """The traffic in words: of payloads, which every round has, and of all else."""
    each, other = (
        [bytes_text(traffic[name.format(way)]) for way in ("up", "down")]
        for name in ("payload_{}_bytes_per_node_round", "other_{}_bytes")
    )
    return (
        f"{each[0]} up, {each[1]} down of payloads per node and round",
        f"all else in the whole run: {other[0]} up, {other[1]} down, checkpoints too",
    )
