"""The computed tables of the engine, link, gossip, coordinator and fault pages."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.benchmarks.engine.steps import PARTS
from tests.benchmarks.gossip import shaped, simulated
from tests.benchmarks.links.measure import BASELINE
from tests.benchmarks.pages.blocks import table
from tests.benchmarks.records import read_records

DATA = Path("docs/results/data")

FAULTS = {
    "kill node": "node killed (SIGKILL)",
    "stop node": "node stopped for 2 to 9 s (SIGSTOP), lease 6 s",
    "slow node": "node slowed: stopped for four fifths of each half second",
    "cut node": "node cut off from coordinator and peers for 2 to 9 s",
    "corrupt": "payload corrupted on the wire, one bit",
    "kill coordinator": "coordinator killed",
    "stop coordinator": "coordinator stopped for 2 to 6 s",
}
"""What a reader is told of each kind of fault, in the order of the table."""

GONE = {"guess_seconds": "guess", "orthogonal_apply_seconds": "apply, orthogonalised"}
"""Columns of what the engine had when engine.json was measured, and has no more."""


def document(name: str) -> Any:
    """A data file."""
    return json.loads((DATA / name).read_bytes())


# ---- engine


def engine_times() -> str:
    """Milliseconds of each part, for both sizes, all R and threads."""
    rows = []
    results = document("engine.json")["results"]
    gone = {name: title for name, title in GONE.items() if all(name in row for row in results)}
    for row in results:
        parts = row["engine_seconds"]
        rows.append(
            (
                *(f"{row['parameters'] / 1e6:.1f} M", str(row["payloads"]), str(row["threads"])),
                *(_ms(parts[part]) for part in (*PARTS, "total")),
                *(_ms(row[name]) for name in gone),
            )
        )
    head = ("parameters", "R", "threads", *PARTS, "step", *gone.values())
    return table(head, rows, left=0)


def engine_ratios() -> str:
    """The step beside the straightforward one and beside both floors."""
    rows = []
    for row in document("engine.json")["results"]:
        ratio = row["ratio"]
        rows.append(
            (
                *(f"{row['parameters'] / 1e6:.1f} M", str(row["payloads"]), str(row["threads"])),
                *(
                    _ms(row["engine_seconds"]["total"]),
                    _ms(row["straightforward_seconds"]["total"]),
                ),
                f"{ratio['median']:.1f} ({ratio['least']:.1f}-{ratio['most']:.1f})",
                f"{row['times_larger_floor']:.1f}",
                f"{row['times_larger_floor_folded']:.1f}",
            )
        )
    head = (
        *("parameters", "R", "threads", "step", "straightforward", "ratio (least-most)"),
        *("times the floor", "with 96 multiply-adds"),
    )
    return table(head, rows, left=0)


def _ms(spread: Mapping[str, float]) -> str:
    return f"{spread['median'] * 1e3:.0f}"


# ---- links


def links() -> str:
    """Every kind of link at every distance."""
    found = document("links.json")
    bases = {row["round_trip_ms"]: row for row in found["results"] if row["kind"] == BASELINE}
    rows = []
    for row in found["results"]:
        base = bases[row["round_trip_ms"]]["all_gather_ms"]["median"]
        at = f"{row['round_trip_ms']:g} ms: " if row["round_trip_ms"] else ""
        call, large, small = (
            row["small_call_ms"]["median"],
            *(row["stream_mb_per_s"][size] for size in ("8", "1")),
        )
        rows.append(
            (
                at + row["kind"],
                f"{call:.2f}" if call < 10 else f"{call:.0f}",
                *(_rate(each, whole=not at) for each in (large, small)),
                f"{row['cpu_ms_per_mb']:.1f}",
                _spread(row["all_gather_ms"]),
                "" if row["kind"] == BASELINE else f"{base / row['all_gather_ms']['median']:.1f}",
            )
        )
    head = (
        *("", "call, ms", "8 MB, MB/s", "1 MB, MB/s", "CPU, ms per MB"),
        *("all-gather 8 x 1 MB, ms", "times faster than hivemind"),
    )
    return table(head, rows)


def _rate(spread: Mapping[str, float], *, whole: bool) -> str:
    return _spread(spread) if whole else f"{spread['median']:.0f}"


def _spread(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.0f} ({spread['least']:.0f}-{spread['most']:.0f})"


# ---- coordinator


def scale() -> str:
    """What a round costs a coordinator, by the number of members."""
    rows = []
    for row in document("scale.json")["sizes"]:
        cpu, traffic = row["cpu_ms_per_round"], row["bytes_per_round"]
        arrived = sum(
            count for name, count in row["messages_per_round"].items() if name.startswith("in ")
        )
        rows.append(
            (
                f"{row['members']}",
                *(f"{cpu[part]:.0f}" for part in ("all", "parse", "machine", "journal")),
                f"{arrived:,.0f}",
                *(
                    f"{traffic[way] / 1e6:.2g}"
                    if traffic[way] < 1e7
                    else f"{traffic[way] / 1e6:.0f}"
                    for way in traffic
                ),
                f"{row['state_bytes'] / 1e6:.2f}",
                f"{row['peak_memory_bytes'] / 1e6:.0f}",
            )
        )
    head = (
        *("members", "CPU ms", "parse", "machine", "journal", "messages in", "MB in", "MB out"),
        *("state MB", "process MB"),
    )
    return table(head, rows, left=0)


def scale_with_sums() -> str:
    """The same with every payload to everybody and with summers."""
    rows = []
    for row in document("scale-sums.json")["sizes"]:
        out = row["bytes_per_round"]["out"]
        rows.append(
            (
                f"{row['members']}",
                "summers" if row["sums"] else "everybody",
                f"{row['cpu_ms_per_round']['all']:,.0f}",
                f"{row['bytes_per_round']['in'] / 1e6:.2f}",
                f"{out / 1e6:.1f}",
                f"{out / row['members'] / 1e3:.1f}",
            )
        )
    head = ("members", "payloads to", "CPU ms", "MB in", "MB out", "kB out a member")
    return table(head, rows)


def chaos() -> str:
    """Faults, what they cost and what survived."""
    found = document("chaos.json")
    seconds, rounds = found["recovery_seconds"], found["recovery_rounds"]
    faults, undisturbed = sum(found["faults"].values()), found["rounds_committed_without_faults"]
    rows = [
        ("faults", f"{faults} in {found['minutes']:g} minutes on {found['nodes']} nodes"),
        *((text, str(found["faults"][kind])) for kind, text in FAULTS.items()),
        ("rounds committed", f"{found['rounds_committed']} ({undisturbed} without faults)"),
        ("rounds skipped", str(found["rounds_skipped"])),
        ("divergences", f"**{found['divergences']}**"),
        (
            "commits replayed from genesis, all checkpoints equal to the replay",
            str(found["commits_replayed"]),
        ),
        ("targets that did not recover", str(found["unrecovered"])),
        ("nodes that did not leave when asked", str(len(found["did_not_leave"]))),
        ("seconds to recover", f"median {seconds['median']:.1f}, p95 {seconds['p95']:.1f}"),
        ("rounds to recover", f"median {rounds['median']}, p95 {rounds['p95']}"),
        ("throughput kept", f"{100 * found['throughput_kept']:.1f} %"),
    ]
    return table(("", ""), rows, left=2)


CHAOS_BUSY = ("chaos-busy.json", "chaos-busy-often.json")
"""Data files of faults on a busy machine, one for each rate."""


def chaos_busy() -> str:
    """What faults cost beside much other work, at each rate."""
    columns = [_chaos_column(document(name)) for name in CHAOS_BUSY]
    every = [document(name)["mean_seconds_between_faults"] for name in CHAOS_BUSY]
    head = ("", *(f"a fault every {seconds:g} s" for seconds in every))
    return table(head, [(row, *(each[row] for each in columns)) for row in columns[0]], left=1)


def _chaos_column(found: Mapping[str, Any]) -> dict[str, str]:
    seconds, rounds = found["recovery_seconds"], found["recovery_rounds"]
    start, machine = found["restart"]["start"], found["machine"]
    faults, undisturbed = sum(found["faults"].values()), found["rounds_committed_without_faults"]
    return {
        "faults, of them killed nodes": (
            f"{faults} in {found['minutes']:g} min, {found['faults'].get('kill node', 0)}"
        ),
        "rounds committed (without faults)": f"{found['rounds_committed']} ({undisturbed})",
        "rounds skipped, divergences": f"{found['rounds_skipped']}, **{found['divergences']}**",
        "targets that did not recover": str(found["unrecovered"]),
        "seconds to recover: median, p95": f"{seconds['median']:.1f}, {seconds['p95']:.1f}",
        "rounds to recover: median, p95": f"{rounds['median']:g}, {rounds['p95']}",
        "seconds of a killed node's start": f"{start['median']:.1f}, {start['p95']:.1f}",
        "contributors over live members": f"{100 * found['participation']:.1f} %",
        "samples kept, rounds kept": (
            f"{100 * found['throughput_kept']:.1f} %, {100 * found['rounds_kept']:.1f} %"
        ),
        "load of the machine (without faults)": (
            f"{machine['load']:g} ({machine['load_without_faults']:g})"
        ),
    }


# ---- gossip


_ON_PAGE = (
    "4 equal",
    "8 equal",
    "16 equal",
    "4, one slow",
    "8, one slow",
    "16, one slow",
    "8 cable",
    "14 unlike",
)


def on_page(homes: str) -> bool:
    """Whether these homes are in the short table of the page; its notes have all."""
    return homes in _ON_PAGE or homes.startswith(("64", "8 behind"))


def gossip_simulated(payload: str, *, keep: Callable[[str], bool] = lambda _: True) -> str:
    """Rows of the simulation for one size of payload."""
    rows = [
        row
        for row in document("gossip-simulated.json")
        if row["payload"] == payload and keep(row["homes"])
    ]
    return _lines(simulated.COLUMNS, map(simulated.line, rows))


def gossip_shaped(*names: str) -> str:
    """Rows of runs over shaped lines."""
    return _lines(
        shaped.COLUMNS, [shaped.line(row) for name in names for row in document(name)["results"]]
    )


def _lines(columns: Sequence[str], lines: Iterable[str]) -> str:
    return "\n".join(
        [f"| {' | '.join(columns)} |", "| --- |" + " ---: |" * (len(columns) - 1), *lines]
    )


# ---- step length


def step_lengths() -> str:
    """Bits per byte at each rate, for every scale of a step and number of authors."""
    rows: list[dict[str, Any]] = read_records(DATA / "step-length.jsonl")
    found: dict[tuple[str, float, int], list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault((row["scale"], row["wanted"], row["authors"]), []).append(row)
    lines = []
    for (scale, wanted, authors), cells in sorted(found.items(), key=_as_now_first):
        rates: dict[float, list[str]] = {}
        for row in sorted(cells, key=lambda row: (row["rate"], row["seed"])):
            rates.setdefault(row["rate"], []).append(f"{row['bits_per_byte']:.3f}")
        label = "as it is" if scale == "now" else f"each {scale}'s {wanted:g}"
        lines.append(
            (
                label.replace("each model's", "the model's"),
                f"{authors}",
                f"{cells[0]['step_length']:.2f}" if scale == "now" else f"{wanted:.2f}",
                "; ".join(f"{rate:g}: {', '.join(ends)}" for rate, ends in rates.items()),
            )
        )
    head = ("length", "R", "over the rate", "rate: bits per byte of seeds 0, 1, 2")
    return table(head, lines)


def _as_now_first(item: tuple[tuple[str, float, int], Any]) -> tuple[bool, str, float, int]:
    (scale, wanted, authors), _ = item
    return scale != "now", scale, wanted, authors
