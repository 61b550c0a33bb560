"""`lockstep plan RUN.toml`: how long a round would take with each method, and what pays.

Nothing is measured and nothing is sent: `protocol.planner` computes it from the run file, the lines
of the nodes and what a machine computes.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lockstep.commands.plan_options import PlanOptions
from lockstep.commands.planning.measured import MeasuredMembers, measured
from lockstep.commands.status import ask
from lockstep.console import messages, output, write_json
from lockstep.exit_codes import UsageError
from lockstep.run_file import read_run_file
from lockstep.volunteer.needs import memory_text
from lockstep.wan.profiles import BUILTIN, cycled, read_profiles
from protocol.codec.payload import PayloadShape
from protocol.planner.advice import bytes_text, rate_text, seconds_text, sentences, times_text
from protocol.planner.compute import Compute, estimated
from protocol.planner.links import MEASURED, HomeLine, Network
from protocol.planner.methods import MethodTraffic, Setting
from protocol.planner.needs import needs_of
from protocol.planner.parameters import Size, size_of
from protocol.planner.payload_bytes import parameters_bytes, votes_bytes
from protocol.planner.plan import RunPlan, plan
from protocol.planner.sums import authors_from, parts_bytes, results_bytes, round_bytes, with_sums
from protocol.runfile import RunSpec

CORE_FLOPS = 50e9
"""Operations per second of a machine of which nothing is said: one core of a desktop."""

DENSE_BYTES = 2
"""Bytes of a number in a dense gradient, as others send it."""


def plan_run(run_file: Path, options: PlanOptions, json_path: str | None) -> None:
    """Computes, prints and writes."""
    spec = read_run_file(run_file)
    size = size_of(spec.model, options.parameters)
    members = _members(options) if options.measure else None
    found = plan(spec, setting_of(spec, size, options, members))
    words = [*sentences(found), *crowd_words(spec, size, found.setting.nodes)]
    if json_path is not None:
        about = {"run": spec.name, "parameters": size.parameters, "chunks": size.chunks}
        links = _links(found.setting.network, members)
        write_json(json_path, about | found.document() | {"links": links, "words": words})
    if json_path != "-":
        for part in render(found, size, words, members):
            output.print(part)


def _members(options: PlanOptions) -> MeasuredMembers:
    """The members of a running coordinator; says which are left out."""
    if options.profiles or options.nodes is not None:
        raise UsageError("expected --measure, or --nodes and --profiles, got both")
    assert options.measure is not None, "asked for with a link alone"
    found = measured(ask(options.measure))
    if found.left_out:
        names = ", ".join(found.left_out)
        messages.print(f"note: too little is known of {names}", soft_wrap=True, markup=False)
    return found


def crowd_words(spec: RunSpec, size: Size, nodes: int) -> list[str]:
    """What a crowd as large as this one would send less if it added for all, in a sentence; nothing
    where it does already, or would not.
    """
    if spec.rounds.sums or not 0 < authors_from(spec.algorithm, size) <= nodes:
        return []
    less, now = round_bytes(with_sums(spec, size), size, nodes), round_bytes(spec, size, nodes)
    words = (
        f"If {nodes} nodes add for each other, each sends {bytes_text(less)} a round instead of "
        f"{bytes_text(now)}: `lockstep init --nodes {nodes}` writes such a run file."
    )
    return [words]


def _links(network: Network, members: MeasuredMembers | None) -> dict[str, object]:
    """Rates and delays of all pairs, from the node of the row to that of the column."""
    nodes = range(len(network))
    rates, delays = network.rate_bit_s, network.delay_s
    return {
        "nodes": [line.name for line in network.lines],
        "mbit_s": [[0.0 if i == j else float(rates[i, j]) / 1e6 for j in nodes] for i in nodes],
        "one_way_ms": [[1000 * float(delays[i, j]) for j in nodes] for i in nodes],
        "measured_pairs": members.links.measured_pairs if members else None,
    }


def setting_of(
    spec: RunSpec, size: Size, options: PlanOptions, members: MeasuredMembers | None = None
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
    algorithm, nodes = spec.algorithm, len(network)
    payload, results = votes_bytes(PayloadShape.of(algorithm, size.chunks)), 0.0
    if 0 < spec.rounds.sums <= nodes:
        payload = parts_bytes(algorithm, size, nodes)
        results = results_bytes(algorithm, size, nodes)
    traffic = MethodTraffic(
        gradient=size.parameters * DENSE_BYTES,
        payload=payload,
        parameters=parameters_bytes(algorithm, size.parameters),
        results=results,
    )
    return Setting(_compute(spec, size, options, len(network)), network, traffic, MEASURED)


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
        "movements" if spec.algorithm.facts.scaled else "votes",
    )
    if options.slower and len(options.slower) > nodes:
        raise UsageError(
            f"--slower: expected at most {nodes} factors, one for each node, "
            f"got {len(options.slower)}"
        )
    return replace(found, jitter=options.jitter, slower=options.slower)


def _network(options: PlanOptions) -> Network:
    if options.nodes is None:
        raise UsageError("expected --nodes N, or --measure LINK of a running coordinator")
    catalogue = read_profiles(options.profiles_file or BUILTIN)
    lines = []
    for number, name in enumerate(cycled(options.profiles or ("cable",), options.nodes)):
        profile = catalogue.profile(name)
        lines.append(
            HomeLine(
                f"node-{number} ({name})",
                profile.up_mbit_s * 1e6,
                profile.down_mbit_s * 1e6,
                profile.rtt_ms / 1000,
            )
        )
    return Network(lines)


# ---- what a person sees


def render(
    found: RunPlan, size: Size, words: Sequence[str], members: MeasuredMembers | None = None
) -> list[RenderableType]:
    """Facts, methods and sentences, each at most 80 columns wide."""
    advice = (Padding(Text(f"- {text}"), (0, 0)) for text in words)
    return [_facts(found, size, members), _methods(found), *advice]


def _facts(found: RunPlan, size: Size, members: MeasuredMembers | None) -> Table:
    spec, setting = found.spec, found.setting
    network, compute, traffic = setting.network, setting.compute, setting.traffic
    arithmetic_s = compute.extract_s + compute.apply_s
    added = f", sums {bytes_text(traffic.results)}" if traffic.results else ""
    facts = {
        "run": f"{spec.name}: {size.parameters:,} parameters, {_form(spec)}",
        "nodes": f"{setting.nodes}, lines {_span(network.up_bit_s, rate_text)} up, "
        f"{_span(network.down_bit_s, rate_text)} down",
        "compute": f"{seconds_text(compute.pass_s)} a pass; "
        f"AdamW {seconds_text(compute.optimizer_s)}, "
        f"{found.title(found.method('demo'))} {seconds_text(arithmetic_s)}; "
        f"varies by {compute.jitter:.0%}",
        "sent": f"gradient {bytes_text(traffic.gradient)}, payload {bytes_text(traffic.payload)}, "
        f"parameters {bytes_text(traffic.parameters)}{added}",
        "a node": memory_text(needs_of(spec, size)),
        "links": _links_words(network, members),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        table.add_row(name, value)
    return table


def _links_words(network: Network, members: MeasuredMembers | None) -> str:
    """The range of round trips, and how many of them were measured."""
    pairs = 2 * network.delay_s[np.triu_indices(len(network), 1)]
    if not len(pairs):
        return "none"
    told = f"; {members.links.measured_pairs} of {len(pairs)} pairs measured" if members else ""
    return f"round trips {_span(pairs, seconds_text)}{told}"


def _form(spec: RunSpec) -> str:
    """What the run's own algorithm sends."""
    algorithm = spec.algorithm
    if algorithm.facts.sends_parameters:
        return f"{algorithm.name}, {algorithm.mixing.exchange}"
    return f"k = {algorithm.top_k}"


def _span(values: Any, text: Callable[[float], str]) -> str:
    least, most = float(values.min()), float(values.max())
    return text(least) if least == most else f"{text(least)} to {text(most)}"


def _methods(found: RunPlan) -> Table:
    table = Table(
        box=SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        title="one round, what a node sends, and how many times less than all-reduce takes",
        title_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for heading in ("takes", "exchange", "waiting", "sends", "a day", "less"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in found.predictions:
        table.add_row(
            found.title(one).partition("-exponential")[0],  # as much as fits
            seconds_text(one.seconds),
            seconds_text(one.exposed_s),
            seconds_text(one.waiting_s),
            bytes_text(one.up_bytes),
            bytes_text(found.day_bytes(one)),
            times_text(found.times_less(one)),
            style="bold" if one == found.best else "",
        )
    return table
