"""`lockstep plan RUN.toml`: how long a round would take with each method, and what to do about it.

Nothing is measured and nothing is sent: `protocol.planner` computes it from the run file, the lines
of the nodes and what a machine computes.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lockstep.commands.planning.links_table import links_document, links_table, links_words
from lockstep.commands.planning.matrix import read_matrix
from lockstep.commands.planning.measured import Measured, measured
from lockstep.commands.status import ask
from lockstep.console import messages, output, write_json
from lockstep.exit_codes import UsageError
from lockstep.run_file import read_run_file
from lockstep.volunteer.needs import memory_text
from lockstep.wan.profiles import BUILTIN, cycled, read_profiles
from node.system.files import replacing_file
from protocol.planner.advice import bytes_text, rate_text, seconds_text, sentences, times_text
from protocol.planner.chart import chart
from protocol.planner.compute import Compute, estimated
from protocol.planner.links import MEASURED, Line, Network
from protocol.planner.methods import Prediction, Setting, Traffic
from protocol.planner.needs import needs_of
from protocol.planner.parameters import Size, size_of
from protocol.planner.payload_bytes import parameters_bytes, shape_of, votes_bytes
from protocol.planner.plan import Plan, plan
from protocol.runfile import RunSpec
from protocol.words import quantity

CORE_FLOPS = 50e9
"""Operations per second of a machine of which nothing is said: one core of a desktop."""

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
    measure: str | None = None
    """Link to a coordinator whose members are planned for."""
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
    gossip_bits: int | None = None
    """Bits of a parameter; None: as the run file says."""
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
    members = _members(options) if options.measure else None
    setting = setting_of(spec, size, options, members)
    found = plan(setting, grows=options.matrix is None and members is None)
    shape = shape_of(spec.algorithm, size)
    verdict, *further = sentences(found, spec.algorithm, shape)
    words = [in_run_s_words(each, spec) for each in (verdict, _whole(spec, found), *further)]
    if json_path is not None:
        write_json(
            json_path,
            {
                "run": spec.name,
                "parameters": size.parameters,
                "chunks": size.chunks,
                **found.document(spec.algorithm),
                "links": _links(found.setting.network, members),
                "words": words,
            },
        )
    if svg_path is not None:
        title = f"{spec.name}: {quantity(setting.nodes, 'node')}, {size.parameters:,} parameters"
        with replacing_file(svg_path) as temporary:
            temporary.write_text(chart(title, found.predictions), encoding="utf-8")
    if json_path != "-":
        for part in render(spec, size, found, words, members):
            output.print(part)


def in_run_s_words(text: str, spec: RunSpec) -> str:
    """Words about methods with the run's own name for its algorithm: rounds of local steps are
    predicted as those of DeMo.
    """
    if not spec.algorithm.moves:
        return text
    for named, own in (("demo-overlap", "local steps with overlap"), ("(?i:demo)", "local steps")):
        text = re.sub(rf"\b{named}\b", own, text)
    return text


def own_method(spec: RunSpec, found: Plan) -> Prediction:
    """The prediction for the run as its run file has it."""
    if spec.algorithm.mixes:
        topology = spec.algorithm.mixing.topology
        own = [each for each in found.predictions if each.topology == topology]
        return own[0] if own else found.method("gossip-adam")
    return found.method("demo-overlap" if spec.rounds.overlap else "demo")


def _whole(spec: RunSpec, found: Plan) -> str:
    """How long the run takes as its run file has it, and the bytes of a day."""
    own, day_s = own_method(spec, found), 86_400
    up, down = (
        bytes_text(each * day_s / max(own.seconds, 1e-9)) for each in (own.up_bytes, own.down_bytes)
    )
    length = seconds_text(spec.schedule.steps * own.seconds)
    return (
        f"In all: {spec.schedule.steps:,} steps of this run, by {own.title}, take {length}, and a "
        f"node sends {up} a day and receives {down}."
    )


def _members(options: PlanOptions) -> Measured:
    """The members of a running coordinator; says which are left out."""
    if options.profiles or options.matrix is not None or options.nodes is not None:
        raise UsageError("expected --measure, or --nodes, --profiles and --matrix, got both")
    assert options.measure is not None, "asked for with a link alone"
    found = measured(ask(options.measure))
    if found.left_out:
        names = ", ".join(found.left_out)
        messages.print(f"note: too little is known of {names}", soft_wrap=True, markup=False)
    return found


def _links(network: Network, members: Measured | None) -> dict[str, object]:
    pairs = members.links.measured_pairs if members else None
    return {**links_document(network), "measured_pairs": pairs}


def setting_of(
    spec: RunSpec, size: Size, options: PlanOptions, members: Measured | None = None
) -> Setting:
    """What is predicted: the machines, their lines and the sizes of what they send. `members`, if
    given, stand for lines and speeds.
    """
    network = members.network if members else _network(options)
    if members:
        samples = options.samples or max(1, spec.rounds.batch_samples_max // len(network))
        pass_s = members.pass_s(samples)
        options = replace(
            options,
            compute_s=pass_s if options.compute_s is None else options.compute_s,
            slower=options.slower or members.slower,
        )
    traffic = Traffic(
        gradient=size.parameters * options.dense_bits / 8,
        payload=votes_bytes(shape_of(spec.algorithm, size)),
        parameters=_parameters_bytes(spec, size, options),
        local_steps=options.local_steps,
    )
    return Setting(
        _compute(spec, size, options, len(network)), network, traffic, MEASURED, options.seed
    )


def _parameters_bytes(spec: RunSpec, size: Size, options: PlanOptions) -> float:
    """What a node sends to a neighbour: in the run's own form, where it has one."""
    if options.gossip_bits is None:
        return parameters_bytes(spec.algorithm, size.parameters)
    return size.parameters * options.gossip_bits / 8


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
        "movements" if spec.algorithm.moves else "votes",
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


# ---- what a person sees


def render(
    spec: RunSpec, size: Size, found: Plan, words: Sequence[str], members: Measured | None = None
) -> list[RenderableType]:
    """Facts, methods, growth or measured links, and sentences, each at most 80 columns wide."""
    facts = _facts(spec, size, found.setting)
    pairs = members.links.measured_pairs if members else None
    facts.add_row("links", links_words(found.setting.network, pairs))
    parts: list[RenderableType] = [facts, _methods(found, spec)]
    if found.growth:
        parts.append(_growth(found, spec))
    elif table := links_table(found.setting.network):
        parts.append(table)
    return [*parts, *(Padding(Text(f"- {text}"), (0, 0)) for text in words)]


def _facts(spec: RunSpec, size: Size, setting: Setting) -> Table:
    network, compute, traffic = setting.network, setting.compute, setting.traffic
    facts = {
        "run": f"{spec.name}: {size.parameters:,} parameters, {_form(spec)}",
        "nodes": f"{setting.nodes}, lines {_span(network.up_bit_s)} up, "
        f"{_span(network.down_bit_s)} down",
        "compute": f"{seconds_text(compute.pass_s)} a pass; "
        f"AdamW {seconds_text(compute.optimizer_s)}, "
        f"{in_run_s_words('DeMo', spec)} {seconds_text(compute.extract_s + compute.apply_s)}; "
        f"varies by {compute.jitter:.0%}",
        "sent": f"gradient {bytes_text(traffic.gradient)}, payload {bytes_text(traffic.payload)}, "
        f"parameters {bytes_text(traffic.parameters)}",
        "a node": memory_text(needs_of(spec, size)),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _form(spec: RunSpec) -> str:
    """What the run's own algorithm sends."""
    algorithm = spec.algorithm
    if algorithm.mixes:
        return f"{algorithm.name}, {algorithm.mixing.exchange}"
    return f"k = {algorithm.top_k}"


def _span(rates: Any) -> str:
    least, most = float(rates.min()), float(rates.max())
    return rate_text(least) if least == most else f"{rate_text(least)} to {rate_text(most)}"


def _methods(found: Plan, spec: RunSpec) -> Table:
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
            in_run_s_words(_title(one, found.setting.traffic.local_steps), spec),
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


def _growth(found: Plan, spec: RunSpec) -> Table:
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
        table.add_row(
            in_run_s_words(method, spec), *(seconds_text(point.seconds) for point in points)
        )
    return table
