"""`lockstep demo`: a whole run on one machine, in separate processes over real sockets, evaluated
at its end.

    prepare the corpus once -> coordinator and nodes train (live table)
        -> evaluate genesis and checkpoint -> summary: table, JSON, plot, checkpoint

The model is small enough for two CPU cores and large enough to learn visibly in sixty rounds: a
byte-level llama of a million parameters on Lockstep's own sources and pages.
"""

import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from lockstep.cluster.child import Child
from lockstep.cluster.live_table import shown
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.cluster.loss_plot import plot_loss
from lockstep.cluster.settings import DemoOptions
from lockstep.cluster.summary import (
    FinishedRun,
    MeasuredLoss,
    a_checkpoint,
    evaluate,
    run_to_its_end,
    summary,
    traffic_lines,
)
from lockstep.console import (
    agreement,
    apart_text,
    bytes_text,
    messages,
    output,
    own_command,
    progress,
    write_json,
)
from lockstep.exit_codes import UsageError
from lockstep.presets import run_of
from lockstep.run_file import write_run_file
from lockstep.service.directory import Owner, claimed
from lockstep.service.signals import stopped_like_ctrl_c
from node.data.prepare import prepare_builtin
from node.system.files import storage_errors
from protocol.errors import SettingsError
from protocol.runfile import RunSpec
from protocol.words import quantity

CORPUS_BYTES = 4_000_000
"""Size of the part of the built-in corpus that is prepared: more than a demo reads, in a few
seconds."""

BATCH_SAMPLES_MAX = 96
"""Limit on the samples of all nodes in a round: about a second of two cores."""

SHORT_RATES = {"demo": 0.0015, "gossip-adam": 0.004}
"""Learning rates above those with which longer runs begin, because sixty rounds are few."""

TITLES = {"local_steps": "local steps", "demo": "DeMo", "gossip-adam": "gossip Adam"}
"""Algorithms, for the heading of the plot."""

MARK_NAME = ".lockstep-demo"
"""Name of the file that marks a directory as a demo's, which the next demo may empty."""


def run_demo(settings: DemoOptions) -> None:
    """Trains, evaluates and prints a summary.

    Raises `SettingsError` for an unknown algorithm, `UsageError` for a directory of anything else,
    `StorageError` while another demo is at work in it; nothing is changed then.
    """
    spec = demo_spec(settings)
    mark_directory(settings.directory)
    with claimed(settings.directory, Owner("demo")):
        clear_directory(settings.directory)
        _train_and_tell(settings, spec)


def _train_and_tell(settings: DemoOptions, spec: RunSpec) -> None:
    directory = settings.directory
    with progress("preparing the corpus", "tokens") as advance:
        data = directory / "data"
        prepare_builtin(
            data, byte_limit=CORPUS_BYTES, progress=lambda _, tokens: advance(tokens, CORPUS_BYTES)
        )
        advance(CORPUS_BYTES, CORPUS_BYTES)
    write_run_file(directory / "run.toml", spec, force=True)
    cluster = Cluster(ClusterSettings(directory, directory / "run.toml", data, settings.nodes))
    with stopped_like_ctrl_c():
        finished = run_to_its_end(cluster, shown(cluster, spec.schedule.steps))
    checkpoint = _keep_checkpoint(cluster.nodes, directory / "checkpoint")
    with messages.status("evaluating the genesis and the final checkpoint"):
        evaluation = evaluate(spec, data, checkpoint)
    document = summary(spec, finished, evaluation)
    picture = _picture_path(settings)
    plot_loss(
        picture,
        finished.losses,
        _validation(finished, evaluation),
        f"{quantity(settings.nodes, 'node')}, {TITLES[settings.algorithm]}",
    )
    write_json(settings.json_path, document)
    output.print(summary_table(document))
    messages.print(
        f"summary {settings.json_path}   plot {picture}   checkpoint {checkpoint}", soft_wrap=True
    )
    messages.print(
        f"try: {own_command()} generate {shlex.quote(str(checkpoint))} --prompt 'def '",
        soft_wrap=True,
    )


def demo_spec(settings: DemoOptions) -> RunSpec:
    """The demo's run file; `SettingsError` for an unknown algorithm."""
    algorithm = settings.algorithm
    if algorithm not in TITLES:
        raise SettingsError(f"--algorithm: expected {', '.join(TITLES)}, got {algorithm!r}")
    schedule: dict[str, Any] = {
        "steps": settings.rounds,
        "warmup_steps": min(5, settings.rounds // 10),
    }
    if algorithm in SHORT_RATES:
        schedule["learning_rate"] = SHORT_RATES[algorithm]
    found = run_of(
        algorithm,
        schedule=schedule,
        rounds={
            "compute_ms": 6_000,
            "publish_ms": 3_000,
            "exchange_ms": 4_000,
            "batch_samples_max": BATCH_SAMPLES_MAX,
            "share_samples_first": max(1, BATCH_SAMPLES_MAX // settings.nodes),
            "quorum": max(1, settings.nodes // 2),
        },
        membership={
            "start_members": settings.nodes,
            "lease_ms": 6_000,
            "heartbeat_ms": 1_000,
        },
    )
    config = {**found.model.config, "num_hidden_layers": 5}
    model = found.model.model_copy(update={"config": config})
    return found.model_copy(update={"name": "demo", "seed": settings.seed, "model": model})


def mark_directory(directory: Path) -> None:
    """Marks a directory as a demo's; `UsageError` for one with anything else."""
    mark = directory / MARK_NAME
    with storage_errors(directory):
        if directory.exists() and any(directory.iterdir()) and not mark.exists():
            raise UsageError(
                f"{directory} is not empty and not of a demo; choose another --directory"
            )
        directory.mkdir(parents=True, exist_ok=True)
        mark.touch()


def clear_directory(directory: Path) -> None:
    """Empties the directory of an earlier demo, except for its corpus; `UsageError` for a directory
    with anything else.
    """
    mark_directory(directory)
    with storage_errors(directory):
        for old in (*directory.glob("node-*"), directory / "coordinator", directory / "checkpoint"):
            if old.exists():
                shutil.rmtree(old)


def _keep_checkpoint(nodes: list[Child], target: Path) -> Path:
    """Copies the checkpoint of one node to `target`."""
    source = a_checkpoint(nodes)
    with storage_errors(target):
        shutil.copytree(source, target)
    return target


def _picture_path(settings: DemoOptions) -> Path:
    """Path of the plot: beside the summary, or in the directory if the summary is printed."""
    return (
        settings.directory / "loss.png"
        if settings.json_path == "-"
        else Path(settings.json_path).with_suffix(".png")
    )


def _validation(finished: FinishedRun, evaluation: MeasuredLoss) -> dict[int, float]:
    return {-1: evaluation.genesis, max(finished.losses, default=0): evaluation.final}


def summary_table(document: Mapping[str, Any]) -> Table:
    """The summary of a demo, for people."""
    loss, traffic, digests = document["loss"], document["traffic"], document["digests"]
    rounds = document["rounds"]
    payloads, other = traffic_lines(traffic)
    facts = {
        "run": document["run_id"],
        "trained": f"{document['parameters']:,} parameters, {document['tokens']:,} tokens, "
        f"{quantity(document['nodes'], 'node')}",
        "rounds": f"{rounds['committed']} committed, {rounds['skipped']} skipped, "
        f"in {document['seconds']} s",
        "loss": f"training {loss['first']:.3f} to {loss['last']:.3f} nats per token\n"
        f"validation {loss['validation_first']:.3f} to {loss['validation_last']:.3f}",
        "replicas": apart_text(document["consensus"])
        or f"{agreement(digests['agreed'])} in {quantity(digests['rounds_checked'], 'round')}, "
        f"last digest {digests['last']}",
        "payload": f"{bytes_text(traffic['payload_bytes'])}, "
        f"{traffic['bits_per_value']:.2f} bits per value",
        "traffic": f"{payloads}\n{other}",
        "against": f"{bytes_text(traffic['dense_bf16_bytes'])} dense bf16: "
        + against_text(traffic["times_less_than_dense"]),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def against_text(times_less: float) -> str:
    """How the payload that a node uploads in a round compares with a dense gradient."""
    if not times_less:
        return "no payload uploaded"
    if times_less < 0.95:
        return f"{1 / times_less:.1f} times as much payload uploaded"
    if times_less < 1.05:
        return "as much payload uploaded"
    return f"{times_less:.{0 if times_less >= 10 else 1}f} times less payload uploaded"
