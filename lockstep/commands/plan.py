"""`lockstep plan RUN.toml`: how long a round would take with each method, and what to do about it.

Nothing is measured and nothing is sent: `protocol.planner` computes it from the run file, the lines
of the nodes and what a machine computes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lockstep.console import output, write_json
from lockstep.exit_codes import UsageError
from lockstep.run_file import read_run_file
from lockstep.wan.profiles import BUILTIN, cycled, read_profiles
from node.system.files import replacing_file
from protocol.codec.payload import PayloadShape
from protocol.errors import SettingsError
from protocol.planner.advice import bytes_text, rate_text, seconds_text, sentences, times_text
from protocol.planner.chart import chart
from protocol.planner.compute import Compute, estimated
from protocol.planner.links import MEASURED, Line, Network
from protocol.planner.methods import Prediction, Setting, Traffic
from protocol.planner.parameters import Size, size_of
from protocol.planner.payload_bytes import payload_bytes
from protocol.planner.plan import Plan, plan
from protocol.runfile import RunSpec

CORE_FLOPS = 50e9
"""Operations per second of a machine of which nothing is said: one core of a desktop."""

NODES_MAX = 256
"""Nodes that are planned for at most: waiting is drawn for each of them."""

SHORT = {
    "one-peer-exponential": "one-peer exp.",
    "alternating-exponential-ring": "alternating",
    "random-matching": "random",
}
"""Topologies in the table, where their names are too long for it."""


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a person says besides the run file; None where it is not said."""

    nodes: int | None = None
    profiles: tuple[str, ...] = ()
    """Names of home links, for the nodes in turn."""
    profiles_file: Path | None = None
    """File of link profiles; None: the built-in one."""
    matrix: Path | None = None
    """Measured links instead of profiles."""
    parameters: int | None = None
    compute_s: float | None = None
    """Seconds of a forward and backward pass over a node's samples of a round."""
    flops: float | None = None
    optimizer_s: float | None = None
    """Seconds of a step of AdamW."""
    demo_s: float | None = None
    """Seconds of DeMo's arithmetic in a round."""
    samples: int | None = None
    """Samples of a node in a round."""
    jitter: float = 0.0
    slower: tuple[float, ...] = ()
    local_steps: int = 50
    dense_bits: int = 16
    gossip_bits: int = 16
    seed: int = 0


def profile_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas; spaces around them do not matter."""
    return tuple(name.strip() for name in text.split(",")) if text.strip() else ()


def numbers(option: str, text: str) -> tuple[float, ...]:
    """The numbers in a list with commas; `UsageError` for one that is none, or not above 0."""
    found = []
    for part in text.split(",") if text.strip() else ():
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e9:
            raise UsageError(f"{option}: expected numbers above 0, such as 1,1.5,2, got {part!r}")
        found.append(value)
    return tuple(found)


def plan_run(
    run_file: Path, options: PlanOptions, json_path: str | None, svg_path: Path | None
) -> None:
    """Computes, prints and writes."""
    spec = read_run_file(run_file)
    size = size_of(spec.model, options.parameters)
    setting = setting_of(spec, size, options)
    found = plan(setting, grows=options.matrix is None)
    shape = _shape(spec, size)
    words = sentences(found, spec.algorithm, shape)
    if json_path is not None:
        write_json(
            json_path,
            {
                "run": spec.name,
                "parameters": size.parameters,
                "chunks": size.chunks,
                **found.document(spec.algorithm),
                "words": words,
            },
        )
    if svg_path is not None:
        title = f"{spec.name}: {setting.nodes} nodes, {size.parameters:,} parameters"
        with replacing_file(svg_path) as temporary:
            temporary.write_text(chart(title, found.predictions), encoding="utf-8")
    if json_path != "-":
        for part in render(spec, size, found, words):
            output.print(part)


def setting_of(spec: RunSpec, size: Size, options: PlanOptions) -> Setting:
    """What is predicted: the machines, their lines and the sizes of what they send."""
    network = _network(options)
    traffic = Traffic(
        gradient=size.parameters * options.dense_bits / 8,
        payload=payload_bytes(_shape(spec, size)),
        parameters=size.parameters * options.gossip_bits / 8,
        local_steps=options.local_steps,
    )
    return Setting(
        _compute(spec, size, options, len(network)), network, traffic, MEASURED, options.seed
    )


def _shape(spec: RunSpec, size: Size) -> PayloadShape:
    algorithm = spec.algorithm
    return PayloadShape(size.chunks, algorithm.top_k, algorithm.value_bits, algorithm.moves)


def _compute(spec: RunSpec, size: Size, options: PlanOptions, nodes: int) -> Compute:
    samples = options.samples or max(1, spec.rounds.batch_samples_max // nodes)
    flops = options.flops
    if flops is None and options.compute_s is None:
        flops = CORE_FLOPS
    found = estimated(
        options.compute_s,
        flops,
        size.parameters,
        samples * spec.data.sequence_length,
        spec.algorithm.update,
    )
    if options.optimizer_s is not None:
        found = replace(found, optimizer_s=options.optimizer_s)
    if options.demo_s is not None:
        found = replace(found, extract_s=options.demo_s / 2, apply_s=options.demo_s / 2)
    if options.slower and len(options.slower) > nodes:
        raise UsageError(
            f"--slower: expected at most {nodes} factors, one for each node, "
            f"got {len(options.slower)}"
        )
    return replace(found, jitter=options.jitter, slower=options.slower)


def _network(options: PlanOptions) -> Network:
    if options.matrix is not None:
        if options.profiles:
            raise UsageError("expected --profiles or --matrix, got both")
        network = read_matrix(options.matrix)
        if options.nodes not in (None, len(network)):
            raise UsageError(
                f"--nodes: expected {len(network)}, the nodes of {options.matrix}, "
                f"got {options.nodes}"
            )
        return network
    if options.nodes is None:
        raise UsageError("expected --nodes N, or --matrix FILE with measured links")
    catalogue = read_profiles(options.profiles_file or BUILTIN)
    lines = []
    for number, name in enumerate(cycled(options.profiles or ("cable",), options.nodes)):
        profile = catalogue.profile(name)
        lines.append(
            Line(
                f"node-{number} ({name})",
                profile.up_mbit_s * 1e6,
                profile.down_mbit_s * 1e6,
                profile.rtt_ms / 1000,
            )
        )
    return Network(lines)


# ---- measured links

Rate = Annotated[float, Field(gt=0, le=1_000_000)]
Delay = Annotated[float, Field(ge=0, le=100_000)]


class _MatrixFile(BaseModel):
    """Links between nodes as measured, from the node of the row to that of the column."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    nodes: Annotated[list[str], Field(min_length=1, max_length=NODES_MAX)]
    """Names."""

    mbit_s: list[list[float]]
    """Rates of single transfers. The diagonal counts for nothing."""

    one_way_ms: list[list[Delay]]
    """Delays. The diagonal counts for nothing."""

    up_mbit_s: list[Rate] | None = None
    """Rate of all transfers from a node together. [default: its largest one to another]"""

    down_mbit_s: list[Rate] | None = None
    """Rate of all transfers to a node together."""


def read_matrix(path: Path) -> Network:
    """The network in a JSON file; `SettingsError` names every wrong field."""
    try:
        table = _MatrixFile.model_validate_json(path.read_bytes())
    except OSError as error:
        raise SettingsError(f"cannot read links {path}: {error.strerror}") from None
    except ValidationError as error:
        problems = "; ".join(_in_words(dict(problem)) for problem in error.errors())
        raise SettingsError(f"{path}: {problems}") from None
    count = len(table.nodes)
    if len(set(table.nodes)) != count:
        raise SettingsError(f"{path}: nodes: expected names that differ, got {table.nodes}")
    rates = _square(table.mbit_s, count, f"{path}: mbit_s") * 1e6
    delays = _square(table.one_way_ms, count, f"{path}: one_way_ms") / 1000
    np.fill_diagonal(rates, 0.0)
    if count > 1 and not (rates[~np.eye(count, dtype=bool)] > 0).all():
        raise SettingsError(f"{path}: mbit_s: expected rates above 0 between any two nodes")
    up = _rates(table.up_mbit_s, rates.max(axis=1, initial=1.0), f"{path}: up_mbit_s")
    down = _rates(table.down_mbit_s, rates.max(axis=0, initial=1.0), f"{path}: down_mbit_s")
    lines = [
        Line(name, float(up[node]), float(down[node])) for node, name in enumerate(table.nodes)
    ]
    np.fill_diagonal(rates, np.inf)
    return Network(lines, between_bit_s=rates, between_s=delays)


def _square(rows: Sequence[Sequence[float]], count: int, what: str) -> Any:
    lengths = [len(row) for row in rows]
    if lengths != [count] * count:
        raise SettingsError(
            f"{what}: expected {count} rows of {count} numbers, got rows of {lengths}"
        )
    return np.array(rows, float)


def _rates(given: Sequence[float] | None, measured: Any, what: str) -> Any:
    if given is None:
        return measured
    if len(given) != len(measured):
        raise SettingsError(f"{what}: expected {len(measured)} rates, got {len(given)}")
    return np.array(given) * 1e6


def _in_words(problem: dict[str, Any]) -> str:
    place = ".".join(str(part) for part in problem["loc"]) or "file"
    if isinstance(problem["input"], bytes):  # the whole file, which is no JSON
        return f"expected JSON: {problem['msg'].lower()}"
    found = json.dumps(problem["input"], default=str)
    return f"{place}: {problem['msg'].lower()}, got {found[:60]}"


# ---- what a person sees


def render(spec: RunSpec, size: Size, found: Plan, words: Sequence[str]) -> list[RenderableType]:
    """Facts, methods, growth and sentences, each at most 80 columns wide."""
    parts: list[RenderableType] = [_facts(spec, size, found.setting), _methods(found)]
    if found.growth:
        parts.append(_growth(found))
    return [*parts, *(Padding(Text(f"- {text}"), (0, 0)) for text in words)]


def _facts(spec: RunSpec, size: Size, setting: Setting) -> Table:
    network, compute, traffic = setting.network, setting.compute, setting.traffic
    facts = {
        "run": f"{spec.name}: {size.parameters:,} parameters, k = {spec.algorithm.top_k}",
        "nodes": f"{setting.nodes}, lines {_span(network.up_bit_s)} up, "
        f"{_span(network.down_bit_s)} down",
        "compute": f"{seconds_text(compute.pass_s)} a pass; "
        f"AdamW {seconds_text(compute.optimizer_s)}, "
        f"DeMo {seconds_text(compute.extract_s + compute.apply_s)}; "
        f"varies by {compute.jitter:.0%}",
        "sent": f"gradient {bytes_text(traffic.gradient)}, payload {bytes_text(traffic.payload)}, "
        f"parameters {bytes_text(traffic.parameters)}",
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _span(rates: Any) -> str:
    least, most = float(rates.min()), float(rates.max())
    return rate_text(least) if least == most else f"{rate_text(least)} to {rate_text(most)}"


def _methods(found: Plan) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="one round, and how many times less than with all-reduce",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("takes", "compute", "exposed", "waiting", "each way", "less"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found.predictions:
        ratio = found.baseline.seconds / one.seconds if one.seconds else 1.0
        table.add_row(
            _title(one, found.setting.traffic.local_steps),
            seconds_text(one.seconds),
            seconds_text(one.compute_s),
            seconds_text(one.exposed_s),
            seconds_text(one.waiting_s),
            bytes_text(one.up_bytes),
            times_text(ratio),
            style="bold" if one == found.best else "",
        )
    return table


def _title(one: Prediction, local_steps: int) -> str:
    if one.method == "diloco":
        return f"diloco, 1 of {local_steps}"
    if one.topology is None:
        return one.method
    return f"gossip {SHORT.get(one.topology, one.topology)}"


def _growth(found: Plan) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="one round by number of nodes",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    counts = [point.nodes for point in next(iter(found.growth.values()))]
    for count in counts:
        table.add_column(str(count), justify="right", no_wrap=True)
    for method, points in found.growth.items():
        table.add_row(method, *(seconds_text(point.seconds) for point in points))
    return table
