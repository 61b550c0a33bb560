"""Gossip over shaped links: `python -m tests.benchmarks.gossip.shaped [--json PATH] [--quick]`.

Every node is a process in a network namespace of its own behind the line of a home
(`lockstep.wan.lab.laboratory`), with the real swarm, links and log of a node
(`tests.benchmarks.gossip.worker`). All publish one payload at the same instant; a round ends when
every node holds all N, verified and written. Needs root; takes a quarter of an hour.

    bound         = max(N (N - 1) S / all uplinks together,
                        (N - 1) S / each downlink, S / each uplink)
                    of payload bytes alone, S each: what no gossip can beat. Frames, headers and
                    lost packets come on top, about 5 % of a line's rate. For equal links it is
                    N - 1 payloads over the slower direction.
    aim           = 1.5 bounds and `ROUND_TRIPS` round trips between two homes
    push to all   every node sends its payload to each other one at once, over TCP streams that
                  are kept open, in the same processes, in turn with the rounds of gossip
    twice         payload bytes that arrived in vain over those needed, of the worst node
    upload share  of all payload bytes that gossip sent, of the nodes with the least and the most

The lines share this machine's processors with the nodes and with each other: `busy` is the share of
them in use while gossip ran. Near 1 it is the machine that was measured; `--slowed 4` measures in
slow motion (`slow_motion`), all seconds being divided by four again.
"""

import argparse
import json
import os
import select
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from lockstep.wan.lab.laboratory import Laboratory, unable
from lockstep.wan.lab.topology import LabHome, Plan
from lockstep.wan.profiles import Profile, read_profiles
from tests.benchmarks.gossip.worker import Place
from tests.benchmarks.links.measure import machine
from tests.benchmarks.wan.slow_motion import slow_motion
from tests.simulation.gossip_setting import bound_ms, home

NEIGHBOURS = 8
"""Neighbours of a node, as in the default run file."""

ROUNDS = {4: 5, 8: 5, 16: 3}
"""Rounds by the number of homes: rounds of many homes take long."""

ROUND_TRIPS = 4
"""Round trips in the aim: offer, request and first part of a payload that goes over two hops."""

SLOW = 0.1
"""Uplink of the slow home, as a part of the others'."""

HEAD_START_NS = 500_000_000
"""Time from the order to the common instant: every process has heard it and made its payload by
then."""

ANSWER_S = 400
"""Longest wait for an answer: longer than any round, or the start of any process."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table."""

    name: str
    homes: tuple[Profile, ...]
    size: int
    """Bytes of a payload."""
    rounds: int
    pushes: int
    """Rounds of push to all."""
    kinds: tuple[str, ...] = ("grpc",)
    slowed: int = 1
    """Factor by which lines are slower than life; seconds here are those of life."""

    @property
    def bound_s(self) -> float:
        """Seconds that no gossip can beat."""
        lines = [
            home(profile.up_mbit_s, profile.down_mbit_s, profile.rtt_ms) for profile in self.homes
        ]
        return bound_ms(lines, self.size) / 1000

    @property
    def push_bound_s(self) -> float:
        """Seconds that no push to all can beat: N - 1 copies through the thinnest uplink, or all
        into the thinnest downlink.
        """
        rate = min(min(profile.up_mbit_s, profile.down_mbit_s) for profile in self.homes)
        return (len(self.homes) - 1) * self.size / (rate * 125_000)

    @property
    def round_trip_s(self) -> float:
        """Seconds of a round trip between the two farthest homes."""
        return 2 * max(profile.rtt_ms for profile in self.homes) / 1000


def settings(*, quick: bool) -> Iterator[Setting]:
    """All settings of the table."""
    profiles = read_profiles()
    cable, dsl = profiles.profile("cable"), profiles.profile("dsl")
    slow = cable.model_copy(update={"up_mbit_s": SLOW * cable.up_mbit_s})
    if quick:
        yield Setting("4 cable", (cable,) * 4, 300_000, 2, 1)
        yield Setting("4 cable, one slow", (cable, cable, cable, slow), 300_000, 2, 1)
        return
    for count, rounds in ROUNDS.items():
        yield Setting(f"{count} cable", (cable,) * count, 1_000_000, rounds, 3)
    for count, rounds in ROUNDS.items():
        yield Setting(
            f"{count} cable, one slow", (*(cable,) * (count - 1), slow), 1_000_000, rounds, 2
        )
    for count, rounds in ROUNDS.items():
        yield Setting(f"{count} dsl", (dsl,) * count, 200_000, rounds, 2)
    yield Setting("4 cable", (cable,) * 4, 1_000_000, 5, 3, ("libp2p",))
    yield Setting("8 cable", (cable,) * 8, 1_000_000, 5, 3, ("libp2p",))


# ---- processes


class Node:
    """A worker in its namespace."""

    def __init__(self, lab: Laboratory, name: str, place: Place) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.benchmarks.gossip.worker",
            json.dumps(asdict(place)),
        ]
        self._process = lab.start(
            name, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def tell(self, **order: Any) -> None:
        """Give an order."""
        print(json.dumps(order), file=self._process.stdin, flush=True)

    def answer(self) -> dict[str, Any]:
        """The answer; `RuntimeError` if the node failed, `TimeoutError` if nothing came."""
        stdout = self._process.stdout
        assert stdout
        if not select.select([stdout], [], [], ANSWER_S)[0]:
            raise TimeoutError(f"a node did not answer within {ANSWER_S} s")
        answer: dict[str, Any] = json.loads(stdout.readline() or '{"error": "a node is gone"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def stop(self) -> None:
        """Stop it, by force if necessary."""
        try:
            self._process.communicate(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextmanager
def linked(setting: Setting) -> Iterator[tuple[list[Node], str]]:
    """The nodes of a setting, linked to each other, and how their lines are shaped."""
    homes = tuple(
        LabHome(f"node-{number}", slow_motion(profile.link(), setting.slowed))
        for number, profile in enumerate(setting.homes)
    )
    with Laboratory(Plan(homes)) as lab:
        nodes = list[Node]()
        try:
            for number, place in enumerate(homes):
                where = Place(
                    number,
                    lab.address(place.name),
                    setting.kinds,
                    NEIGHBOURS,
                    setting.size,
                    setting.slowed,
                )
                nodes.append(Node(lab, place.name, where))
            met = [node.answer() for node in nodes]
            members = {each["peer"]: each["addresses"] for each in met}
            for own, node in zip(met, nodes, strict=True):
                node.tell(meet=members, push=[each["push"] for each in met if each is not own])
            for node in nodes:
                node.answer()
            yield nodes, lab.mechanism
        finally:
            for node in nodes:
                node.stop()


def _all(nodes: Sequence[Node], **order: Any) -> list[dict[str, Any]]:
    for node in nodes:
        node.tell(**order)
    return [node.answer() for node in nodes]


def _timed(nodes: Sequence[Node], **order: Any) -> float:
    """Seconds from a common instant until the last one is done."""
    done = _all(nodes, **order, at_ns=time.monotonic_ns() + HEAD_START_NS)
    return float(max(each["seconds"] for each in done))


# ---- figures


def measure(setting: Setting) -> dict[str, Any]:
    """One line of the table as a document."""
    gossip, push, busy = list[float](), list[float](), list[float]()
    load = os.getloadavg()[0]
    with linked(setting) as (nodes, mechanism):
        for round in range(max(setting.rounds, setting.pushes)):
            if round < setting.rounds:
                before = _processor_times()
                gossip.append(_timed(nodes, gossip=round) / setting.slowed)
                busy.append(_busy(before, _processor_times()))
                _all(nodes, settle=round)
            if round < setting.pushes:
                push.append(_timed(nodes, push=setting.size) / setting.slowed)
        traffic = _all(nodes, statistics=None)
    median, aim = (
        statistics.median(gossip),
        1.5 * setting.bound_s + ROUND_TRIPS * setting.round_trip_s,
    )
    return {
        "homes": setting.name,
        "links": "+".join(setting.kinds),
        "payload_bytes": setting.size,
        "shaped_by": mechanism,
        "slowed": setting.slowed,
        "load_before": load,
        "bound_s": setting.bound_s,
        "aim_s": aim,
        "push_bound_s": setting.push_bound_s,
        "round_s": gossip,
        "push_s": push,
        "median_s": median,
        "slowest_s": max(gossip),
        "median_over_bound": median / setting.bound_s,
        "median_over_aim": median / aim,
        "push_over_median": statistics.median(push) / median,
        "busy": statistics.median(busy),
        **shares(traffic, setting.rounds * (len(setting.homes) - 1) * setting.size),
    }


def shares(traffic: Sequence[Mapping[str, int]], needed: int) -> dict[str, Any]:
    """Shares of bytes, from each node's statistics; `needed` is the bytes that one node had to
    get.
    """
    sent = [each["payload_up_bytes"] for each in traffic]
    return {
        "duplicate_share": max(each["duplicate_bytes"] for each in traffic) / needed,
        "control_share": sum(each["control_up_bytes"] for each in traffic) / sum(sent),
        "upload_shares": [count / sum(sent) for count in sent],
    }


def _processor_times() -> tuple[int, int]:
    """(in use, all) of all processors since the machine started, in ticks."""
    ticks = [int(field) for field in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
    return sum(ticks) - ticks[3] - ticks[4], sum(ticks)


def _busy(before: tuple[int, int], after: tuple[int, int]) -> float:
    return (after[0] - before[0]) / max(1, after[1] - before[1])


COLUMNS = (
    *(
        "homes",
        "links",
        "payload",
        "bound",
        "aim",
        "median",
        "slowest",
        "median/bound",
        "median/aim",
    ),
    *("push to all", "push/median", "twice", "control", "upload shares", "busy"),
)


def line(row: Mapping[str, Any]) -> str:
    """A row for people; seconds, shares in percent."""
    if "error" in row:
        return f"| {row['homes']} | {row['links']} | {row['error']} |"
    uploads = row["upload_shares"]
    cells = (
        *(row["homes"], row["links"], f"{row['payload_bytes'] / 1000:g} kB"),
        *(f"{row[name]:.2f}" for name in ("bound_s", "aim_s", "median_s", "slowest_s")),
        *(f"{row[name]:.2f}" for name in ("median_over_bound", "median_over_aim")),
        *(f"{statistics.median(row['push_s']):.2f}", f"{row['push_over_median']:.1f}"),
        *(f"{100 * row[name]:.2f} %" for name in ("duplicate_share", "control_share")),
        f"{100 * min(uploads):.0f}-{100 * max(uploads):.0f} %",
        f"{row['busy']:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Measure everything and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gossip.shaped",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", type=Path, help="file of the results")
    parser.add_argument("--quick", action="store_true", help="two small settings: does it work?")
    parser.add_argument(
        "--slowed", type=int, default=1, metavar="TIMES", help="measure in slow motion"
    )
    parser.add_argument("--only", default="", help="settings whose name begins with this")
    arguments = parser.parse_args()
    if reason := unable():
        parser.exit(1, f"{reason}\n")
    results = list[dict[str, Any]]()
    print(f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", sep="\n", flush=True)
    for each in settings(quick=arguments.quick):
        setting = replace(each, slowed=arguments.slowed)
        if setting.name.startswith(arguments.only):
            try:
                results.append(measure(setting))
            except (RuntimeError, TimeoutError) as error:  # the others go on
                results.append(
                    {"homes": setting.name, "links": "+".join(setting.kinds), "error": str(error)}
                )
            print(line(results[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"machine": machine(), "results": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
