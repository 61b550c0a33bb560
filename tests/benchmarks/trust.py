"""The cost of trust on a quiet run of honest nodes: `python -m tests.benchmarks.trust`.

    plain    no TLS, trust = "known"
    trusted  TLS on every line, trust = "public", every node vouched for

Real processes over an address of this machine that is not loopback, one cluster after the other, in
turn, so that both meet the same machine. Both have the same run file but for `trust`. Of each
window of committed rounds: bytes on the nodes' lines and processor time of all processes, for each
node and round, and the time of a round. Printed as JSON (`--json PATH`: kept too): medians, least
and most, and the medians of the ratios within each pair.

Bytes that are no payloads come by the second and not by the round: on a busy machine, where TLS
makes rounds longer, they must be compared so (`other_bytes_per_second`).

Set rounds long enough that the least length of a public round, a quarter of `compute_ms`, is
shorter than the rounds themselves; the result says whether it was.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from coordinator.machine.rules.closing import LEAST_PART
from lockstep.cluster.child import Child
from lockstep.cluster.live_table import total_bytes
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.presets import run_of
from lockstep.run_file import write_run_file
from lockstep.service.invitation import own_host
from lockstep.service.keys import load_or_create_key
from protocol.border.join_link import is_loopback
from protocol.errors import SettingsError
from protocol.handshake import public_bytes
from protocol.ids import peer_id
from protocol.runfile import RunSpec
from tests.benchmarks.spread import spread
from tests.support.tiny import tiny_corpus, tiny_spec

KINDS = ("plain", "trusted")
PATIENCE_S = 300.0
WARM_ROUNDS = 5
"""Rounds before a window: kernels are compiled, links are made."""

FIGURES = ("bytes_per_node_round", "cpu_ms_per_node_round", "round_ms", "other_bytes_per_second")


@dataclass(frozen=True, slots=True)
class Window:
    """The figures of one window of one cluster."""

    kind: str
    rounds: int
    bytes_per_node_round: float
    cpu_ms_per_node_round: float
    round_ms: float
    by_owner: Mapping[str, float] = field(default_factory=dict)
    """Bytes of each owner on the nodes' lines, for each node and round."""

    @property
    def other_bytes_per_second(self) -> float:
        """Bytes of one node that are no payloads: most are heartbeats and acknowledgements, as many
        in each second, so that a longer round has more of them.
        """
        other = self.bytes_per_node_round - self.by_owner.get("payload", 0.0)
        return 1000 * other / self.round_ms


def spec_of(kind: str, nodes: int, compute_ms: int, samples: int, *, tiny: bool = True) -> RunSpec:
    """The run of one kind: of the tests' network, whose payloads have some hundred bytes and whose
    heartbeats are frequent, or of the default network, algorithm, k and heartbeats.
    """
    spec = tiny_spec(
        steps=1_000_000,
        members=nodes,
        compute_ms=compute_ms,
        publish_ms=30_000,
        batch_samples_max=samples * nodes,
        share_samples_first=samples,
        quorum=nodes,
    )
    if not tiny:
        own = run_of("local_steps")
        beats = {"heartbeat_ms": own.membership.heartbeat_ms}
        membership = spec.membership.model_copy(update=beats)
        rounds = spec.rounds.model_copy(update={"overlap": own.rounds.overlap})
        parts = {"model": own.model, "algorithm": own.algorithm}
        spec = spec.model_copy(update=parts | {"membership": membership, "rounds": rounds})
    trust = "public" if kind == "trusted" else "known"
    membership = spec.membership.model_copy(update={"trust": trust})
    return RunSpec.model_validate(spec.model_copy(update={"membership": membership}).model_dump())


class Measured(Cluster):
    """A cluster of one kind at an address of this machine."""

    def __init__(self, kind: str, settings: ClusterSettings) -> None:
        super().__init__(settings)
        self._kind, self._host = kind, own_host()
        if is_loopback(f"{self._host}:1"):
            raise SettingsError("expected an address of this machine beside loopback, found none")
        if kind == "plain":
            self.coordinator.arguments += ("--plain-text",)
        else:
            keys = (load_or_create_key(node.directory) for node in self.nodes)
            for key in keys:
                self.coordinator.arguments += ("--vouch", peer_id(public_bytes(key)))

    def listens(self, name: str) -> str:
        return f"{self._host}:0"

    def _arguments(self, child: Child) -> tuple[str, ...]:
        if child in self.nodes and self._kind == "plain":
            return (f"plain://{self.address}",)
        return super()._arguments(child)

    @property
    def committed(self) -> int:
        self.coordinator.refresh()
        return int(self.coordinator.status.get("steps", {}).get("committed", 0))

    def passes(self, rounds: int) -> int:
        """Wait for this number of further commits; returns the number of all."""
        until, deadline_s = self.committed + rounds, time.monotonic() + PATIENCE_S
        while (made := self.committed) < until:
            if time.monotonic() > deadline_s or self.watch():
                said = {child.name: child.last_words() for child in self.children}
                raise TimeoutError(f"expected {until} commits, got {made}: {said}")
            time.sleep(0.02)
        return made


def measure(kind: str, settings: ClusterSettings, rounds: int) -> Window:
    """One window of one cluster, from its start to its end."""
    with Measured(kind, settings) as cluster:
        cluster.start()
        first = cluster.passes(WARM_ROUNDS)
        before, cpu_ms, began_s = lines(cluster), processor_ms(cluster), time.monotonic()
        last = cluster.passes(rounds)
        seconds = time.monotonic() - began_s
        used_ms, after = processor_ms(cluster) - cpu_ms, lines(cluster)
    made = last - first
    parts = made * settings.nodes
    moved = {name: (after[name] - before[name]) / parts for name in after}
    total = sum(moved.values())
    return Window(kind, made, total, used_ms / parts, 1000 * seconds / made, moved)


def lines(cluster: Cluster) -> dict[str, int]:
    """Bytes that all nodes have sent and received, by owner."""
    for node in cluster.nodes:
        node.refresh()
    traffic = [node.status.get("traffic") or {} for node in cluster.nodes]
    ways = [(each, way) for each in traffic for way in ("up", "down")]
    owned = {
        owner: sum(int(each.get(f"{owner}_{way}_bytes") or 0) for each, way in ways)
        for owner in ("payload", "catch_up", "control")
    }
    return owned | {"overhead": sum(total_bytes(*each) for each in ways) - sum(owned.values())}


def processor_ms(cluster: Cluster) -> float:
    """Processor time of all processes of the cluster."""
    return sum(cpu_ms(child.pid) for child in cluster.children if child.pid is not None)


def cpu_ms(pid: int) -> float:
    """Processor time of one process, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return 1000 * (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summed_up(windows: Sequence[Window]) -> dict[str, Any]:
    """Medians with the least and the most, and the medians of the ratios of each pair."""
    by_kind = {kind: [each for each in windows if each.kind == kind] for kind in KINDS}
    figures = {
        kind: {name: spread([getattr(each, name) for each in found], 4) for name in FIGURES}
        for kind, found in by_kind.items()
    }
    pairs = list(zip(*by_kind.values(), strict=True))
    ratios = {
        name: spread([getattr(trusted, name) / getattr(plain, name) for plain, trusted in pairs], 4)
        for name in FIGURES
    }
    owners = {
        kind: {
            owner: spread([each.by_owner[owner] for each in found], 4)
            for owner in found[0].by_owner
        }
        for kind, found in by_kind.items()
    }
    return {"figures": figures, "trusted_over_plain": ratios, "bytes_by_owner": owners}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.trust", description=__doc__)
    parser.add_argument("--json", type=Path, help="file for the result")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30, help="rounds of a window")
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=40, help="samples of a node and round")
    parser.add_argument("--compute-ms", type=int, default=1000)
    parser.add_argument("--tiny", action="store_true", help="the network of the tests")
    wanted = parser.parse_args()
    windows = list[Window]()
    with tempfile.TemporaryDirectory() as scratch:
        data = tiny_corpus(Path(scratch) / "data")
        for number in range(wanted.pairs):
            for kind in KINDS:
                place = Path(scratch) / f"{kind}-{number}"
                place.mkdir()
                parts = wanted.nodes, wanted.compute_ms, wanted.samples
                spec = spec_of(kind, *parts, tiny=wanted.tiny)
                write_run_file(place / "run.toml", spec, force=True)
                settings = ClusterSettings(place, place / "run.toml", data, wanted.nodes)
                windows.append(measure(kind, settings, wanted.rounds))
    least_ms = wanted.compute_ms // LEAST_PART
    document = {
        "settings": {
            name: getattr(wanted, name)
            for name in ("nodes", "rounds", "pairs", "samples", "compute_ms", "tiny")
        },
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0],
        "least_round_ms": least_ms,
        "least_length_held_rounds_up": any(
            each.round_ms < 1.1 * least_ms for each in windows if each.kind == "plain"
        ),
        **summed_up(windows),
        "windows": [asdict(each) for each in windows],
    }
    text = json.dumps(document, indent=1)
    if wanted.json:
        wanted.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
