"""A crowd behind home links, with summers and without: `python -m tests.benchmarks.sums.homes lte`.

Real nodes, each behind a line of its own in a laboratory of network namespaces, train the demo's
network with fewer layers, or (`--large`) one of 20 million whose passes are sleeps: every payload
to everybody as a run begins, and with summers as `lockstep init` sets them for such a crowd.

All in slow motion: a line has a part of its rate and the same multiple of its delay, and seconds
are divided by the factor, because the arithmetic of all homes shares the cores of one machine. One
line of JSON for each run.
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from lockstep.cluster.child import Child
from lockstep.cluster.demo import CORPUS_BYTES, demo_spec
from lockstep.cluster.live_table import Show
from lockstep.cluster.local import ClusterSettings
from lockstep.cluster.settings import DemoOptions
from lockstep.cluster.summary import a_checkpoint, evaluate, run_to_its_end, traffic
from lockstep.console import messages
from lockstep.exit_codes import UsageError
from lockstep.run_file import write_run_file
from lockstep.wan.cluster import WanCluster
from lockstep.wan.lab.laboratory import Laboratory, unable
from lockstep.wan.profiles import read_profiles
from lockstep.wan.settings import WanSettings
from lockstep.wan.up import among_strangers, plan_of
from node.data.prepare import prepare_builtin
from protocol.planner.sums import AUTHORS_MIN, summed
from protocol.runfile import RunSpec
from tests.benchmarks.wan import links
from tests.benchmarks.wan import results as wan
from tests.benchmarks.wan.links import OtherNode, Trial, environment
from tests.benchmarks.wan.methods import CROWD, LOCAL_STEPS
from tests.benchmarks.wan.slow_motion import slow_motion

SLOT_MS = 60_000
"""Latest instant of every part of a round: rounds here end when all is held, never by time."""

LEASE_MS, HEARTBEAT_MS = 60_000, 1_000
"""Patience with a node, and the pause between two heartbeats in life."""

LAYERS = 2
"""Layers of the network: many homes share two cores."""

STEPS, SAMPLES = 3, 2
"""Local steps of a node in a round, and samples of each."""

PASS_S, ROUND_S_MAX = 0.5, 300.0
"""Seconds of a pass of the large network in life, and patience with a round of it here."""

LEFT_OUT = 3
"""Rounds at either end that are not counted: nodes link, and publish their last state."""

SMOOTHED = 5
"""Rounds whose mean loss is the loss at the last of them."""


def spec_of(asked: argparse.Namespace, sums: bool) -> RunSpec:
    """The demo's run for a crowd, among strangers."""
    nodes = asked.nodes
    spec = demo_spec(DemoOptions(nodes=nodes, rounds=asked.rounds, seed=asked.seed))
    spec = among_strangers(spec)
    slots = {"compute_ms": SLOT_MS, "publish_ms": SLOT_MS, "exchange_ms": SLOT_MS}
    share = STEPS * SAMPLES
    told = {
        **slots,
        "batch_samples_max": nodes * share,
        "share_samples_first": share,
        "sums": AUTHORS_MIN if sums else 0,
    }
    algorithm = spec.algorithm.model_copy(update={"local_samples": SAMPLES})
    beats = {"lease_ms": LEASE_MS, "heartbeat_ms": HEARTBEAT_MS * asked.slowed}
    config = {**spec.model.config, "num_hidden_layers": LAYERS}
    return spec.model_copy(
        update={
            "rounds": spec.rounds.model_copy(update=told),
            "model": spec.model.model_copy(update={"config": config}),
            "membership": spec.membership.model_copy(update=beats),
            "algorithm": summed(algorithm) if sums else algorithm,
        }
    )


class Homes(WanCluster):
    """The product's coordinator and nodes, each behind its line."""

    def __init__(self, settings: ClusterSettings, laboratory: Laboratory, slowed: int) -> None:
        super().__init__(settings, laboratory)
        self.nodes = [self._slow(node, slowed) for node in self.nodes]

    def _slow(self, node: Child, slowed: int) -> Child:
        found = OtherNode(
            node.name, node.directory, node.arguments, environment(), self.laboratory.inside
        )
        found.module = "tests.benchmarks.sums.slow_node", str(slowed)
        return found


class Watch:
    """What is seen of a run while it goes on, by its committed rounds."""

    def __init__(self, cluster: WanCluster) -> None:
        self._cluster, self._began_s = cluster, time.monotonic()
        self.seen: list[tuple[float, int, int, int]] = []
        """Seconds, committed rounds, and the bytes that all lines have carried up and down."""
        self.losses: dict[int, tuple[float, float]] = {}
        """Seconds and loss, in nats per token, by round."""

    @contextmanager
    def shown(self) -> Iterator[Show]:
        """In the place of a table."""
        yield lambda events: self.take()

    def take(self) -> None:
        """Note what is new."""
        status, now_s = self._cluster.coordinator.status, time.monotonic() - self._began_s
        committed = status.get("steps", {}).get("committed", 0)
        if not self.seen or committed > self.seen[-1][1]:
            lines = [use.total for use in self._cluster.usage.values()]
            carried = sum(line.up_bytes for line in lines), sum(line.down_bytes for line in lines)
            self.seen.append((now_s, committed, *carried))
        for commit in status.get("last_commits", ()):
            if commit.get("loss") is not None:
                self.losses.setdefault(commit["round"], (now_s, commit["loss"]))


def measured(watch: Watch, nodes: int, slowed: int) -> dict[str, Any]:
    """The figures of a run: bytes of a node and round on its line, seconds of a round, and the
    smoothed loss by seconds since the first commit, in steps of life.
    """
    last = watch.seen[-1][1]
    kept = [each for each in watch.seen if LEFT_OUT <= each[1] <= last - LEFT_OUT]
    (_, first, up, down), (_, end, up_then, down_then) = kept[0], kept[-1]
    rounds = nodes * (end - first)
    times = [
        (later[0] - sooner[0]) / (later[1] - sooner[1]) / slowed for sooner, later in pairwise(kept)
    ]
    began_s = min(seconds for seconds, _ in watch.losses.values())
    order = sorted(watch.losses)
    losses = [watch.losses[each][1] for each in order]
    course = [
        (
            round((watch.losses[order[at]][0] - began_s) / slowed, 2),
            order[at],
            round(statistics.fmean(losses[at - SMOOTHED + 1 : at + 1]), 4),
        )
        for at in range(SMOOTHED - 1, len(order))
    ]
    return {
        "up_bytes": round((up_then - up) / rounds),
        "down_bytes": round((down_then - down) / rounds),
        "round_s": round(statistics.median(times), 3),
        "round_s_quartiles": [round(each, 3) for each in statistics.quantiles(times)],
        "course": course,
    }


def small(asked: argparse.Namespace, arm: str, place: Path) -> dict[str, Any]:
    """A network that really trains: its loss, too."""
    settings = WanSettings(nodes=asked.nodes, profiles=(asked.profile,), rounds=asked.rounds)
    plan = plan_of(settings, read_profiles())
    homes = (
        replace(home, link=home.link and slow_motion(home.link, asked.slowed))
        for home in plan.homes
    )
    spec = spec_of(asked, arm == "sums")
    data = place / "data"
    prepare_builtin(data, byte_limit=CORPUS_BYTES)
    write_run_file(place / "run.toml", spec)
    with Laboratory(replace(plan, homes=tuple(homes)), seed=asked.seed) as laboratory:
        settings_ = ClusterSettings(place, place / "run.toml", data, asked.nodes, by_token=True)
        cluster = Homes(settings_, laboratory, asked.slowed)
        watch = Watch(cluster)
        finished = run_to_its_end(cluster, watch.shown())
    status = finished.coordinator
    losses = evaluate(spec, data, a_checkpoint(cluster.nodes))
    return {
        "profile": asked.profile,
        "nodes": asked.nodes,
        "slowed": asked.slowed,
        "seed": asked.seed,
        "arm": arm,
        "algorithm": spec.algorithm.model_dump(),
        "parameters": losses.parameters,
        "committed": status["steps"]["committed"],
        "skipped": status["steps"]["skipped"],
        "agreed": status["digests"]["agreed"],
        "rounds_checked": status["digests"]["rounds_checked"],
        "validation": [round(losses.genesis, 4), round(losses.final, 4)],
        "payloads": traffic(finished, losses.parameters),
        **measured(watch, asked.nodes, asked.slowed),
    }


def large(asked: argparse.Namespace, arm: str, place: Path) -> dict[str, Any]:
    """A network of 20 million, whose passes are sleeps: bytes and seconds, no loss."""
    rounds = asked.rounds
    trial = Trial(
        asked.profile,
        arm,
        asked.nodes,
        compute_s=PASS_S,
        steps=LOCAL_STEPS * rounds,
        limit_s=ROUND_S_MAX * rounds,
        slowed=asked.slowed,
    )
    found = asdict(wan.measured(trial, links.run(trial, place)))
    return {name: value for name, value in found.items() if name != "method"} | {"arm": arm}


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains with summers and with payloads to everybody, and appends a line for each."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.sums.homes")
    parser.add_argument("profile", choices=tuple(read_profiles().profiles))
    parser.add_argument("--large", action="store_true", help="20 million, whose passes are sleeps")
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--slowed", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=tuple(CROWD))
    parser.add_argument("--into", type=Path, default=Path("out/homes.jsonl"))
    asked = parser.parse_args(arguments)
    if reason := unable():
        raise UsageError(reason)
    asked.into.parent.mkdir(parents=True, exist_ok=True)
    for arm in (asked.only,) if asked.only else CROWD:
        with tempfile.TemporaryDirectory(prefix="lockstep-homes-") as place:
            found = (large if asked.large else small)(asked, arm, Path(place))
        with asked.into.open("a") as lines:
            lines.write(json.dumps(found) + "\n")
        course = {"course": found["course"][-1]} if "course" in found else {}
        messages.print(json.dumps({**found, **course}), soft_wrap=True)


if __name__ == "__main__":
    main()
