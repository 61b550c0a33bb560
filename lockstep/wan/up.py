"""`lockstep wan up`: trains on home links, in network namespaces of this machine.

    plan -> build the laboratory -> measure every line, or stop here -> train, with faults
         -> JSON -> remove everything

Processes, demo model and report are those of `lockstep demo`; the lines between the processes have
the rates, delays, jitter and loss of home links. Trust is that of a run on the internet: nodes have
a token that vouches for them, only standing decides, and connections are encrypted.
"""

import random
from collections.abc import Mapping
from itertools import combinations
from typing import Any

from lockstep.cluster.demo import CORPUS_BYTES, demo_spec
from lockstep.cluster.local import ClusterSettings
from lockstep.cluster.names import COORDINATOR, RELAY, node_name
from lockstep.cluster.settings import DemoOptions
from lockstep.cluster.summary import (
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
    progress,
    write_json,
)
from lockstep.exit_codes import UsageError
from lockstep.run_file import write_run_file
from lockstep.service.signals import stopped_like_ctrl_c
from lockstep.wan.cluster import LinkKind, WanCluster
from lockstep.wan.faults import LineFault, parse_faults
from lockstep.wan.lab.home_link import HomeLink
from lockstep.wan.lab.laboratory import Laboratory, unable
from lockstep.wan.lab.topology import LabHome, Nat, Plan, RegionDistance
from lockstep.wan.link_check import measure_all, require_as_asked
from lockstep.wan.live_table import links_table, shown_wan
from lockstep.wan.profiles import BUILTIN, Catalogue, cycled, read_profiles
from lockstep.wan.settings import WanSettings
from node.data.prepare import prepare_builtin
from node.transports.kinds import parse_kinds
from protocol.errors import SettingsError
from protocol.runfile import RunSpec
from protocol.words import quantity


def wan_up(settings: WanSettings) -> None:
    """Builds, measures, trains, reports, and removes everything, after an error too."""
    if reason := unable():
        raise UsageError(reason)
    faults = parse_faults(
        settings.fault,
        settings.nodes,
        settings.rounds,
        random.Random(settings.seed),
        relay=settings.relay,
    )
    plan = plan_of(settings, read_profiles(settings.profiles_file or BUILTIN))
    profiles = dict(zip(_names(settings), cycled(settings.profiles, settings.nodes), strict=True))
    with stopped_like_ctrl_c(), Laboratory(plan, seed=settings.seed) as laboratory:
        messages.print(
            f"laboratory {laboratory.id}: {settings.nodes} homes, links by {laboratory.mechanism}"
        )
        with progress("measuring the links", "links") as advance:
            links = measure_all(laboratory, profiles, advance)
        messages.print(links_table(links), "each: asked, measured")
        document = {"links": [link.document() for link in links]}
        try:
            require_as_asked(links)
            if settings.rounds:
                document |= _train(settings, laboratory, faults)
        finally:
            if settings.json_path:
                write_json(settings.json_path, document)


def plan_of(settings: WanSettings, catalogue: Catalogue) -> Plan:
    """The laboratory that the settings describe; `SettingsError` for an unknown name."""
    for name in ("profiles", "nat", "links"):
        if not getattr(settings, name):
            raise SettingsError(f"{name}: expected at least one, found none")
    if wrong := sorted(set(settings.nat) - {"none", "masquerade"}):
        raise SettingsError(f"nat: expected none or masquerade, found {wrong[0]!r}")
    transports(settings)
    for region in settings.regions:
        catalogue.require_region(region)
    regions = settings.regions or ("",)
    columns = (
        cycled(names, settings.nodes) for names in (settings.profiles, settings.nat, regions)
    )
    homes = [
        LabHome(name, catalogue.profile(profile).link(), _nat(nat), region)
        for name, profile, nat, region in zip(_names(settings), *columns, strict=True)
    ]
    homes += [
        LabHome(name, region=regions[0]) for name in (COORDINATOR, RELAY)[: 1 + settings.relay]
    ]
    used = dict.fromkeys(home.region for home in homes)
    lines = (
        RegionDistance(here, there, catalogue.one_way_s(here, there))
        for here, there in combinations(used, 2)
    )
    return Plan(tuple(homes), tuple(lines))


def transports(settings: WanSettings) -> tuple[str, ...]:
    """Transports for the nodes in turn, as `lockstep join --links` takes them; `SettingsError` for
    an unknown one.
    """
    return tuple(",".join(parse_kinds(links.replace("+", ","))) for links in settings.links)


def _names(settings: WanSettings) -> list[str]:
    return [node_name(number) for number in range(settings.nodes)]


def _nat(name: str) -> Nat:
    return "masquerade" if name == "masquerade" else "none"


def _train(
    settings: WanSettings, laboratory: Laboratory, faults: tuple[LineFault, ...]
) -> dict[str, Any]:
    directory = settings.directory / laboratory.id
    sizes = settings.nodes, settings.rounds, settings.seed
    spec = among_strangers(demo_spec(DemoOptions(directory, *sizes, "", settings.algorithm)))
    data = directory / "data"
    with messages.status("preparing the corpus"):
        prepare_builtin(data, byte_limit=CORPUS_BYTES)
    write_run_file(directory / "run.toml", spec)
    asked = ClusterSettings(
        directory,
        directory / "run.toml",
        data,
        settings.nodes,
        links=transports(settings),
        relay=settings.relay,
        by_token=True,
    )
    cluster = WanCluster(asked, laboratory, faults)
    links = {place.home.name: place.home.link or HomeLink() for place in laboratory.places.values()}
    finished = run_to_its_end(cluster, shown_wan(cluster, links, spec.schedule.steps))
    with messages.status("evaluating the genesis and the final checkpoint"):
        document = summary(spec, finished, evaluate(spec, data, a_checkpoint(cluster.nodes)))
    lines = {
        name: {"up_bytes": use.total.up_bytes, "down_bytes": use.total.down_bytes}
        for name, use in cluster.usage.items()
    }
    _print_summary(document, lines)
    output.print(links_text(cluster.link_kinds), soft_wrap=True)
    messages.print(f"logs of every process: {directory}", soft_wrap=True)
    return document | {"lines": lines, "ways": cluster.link_kinds, "happened": cluster.happened}


def among_strangers(spec: RunSpec) -> RunSpec:
    """The run as strangers may reach it: only standing decides, where the algorithm allows that."""
    trust = "public" if spec.algorithm.facts.replicas_equal else "known"
    membership = spec.membership.model_copy(update={"trust": trust})
    return spec.model_copy(update={"membership": membership})


def links_text(link_kinds: Mapping[str, Mapping[str, LinkKind]]) -> str:
    """Each node's links: the peers and the transports."""
    return "; ".join(
        f"{node} to {', '.join(map(_link_text, links.items())) or 'nobody'}"
        for node, links in link_kinds.items()
    )


def _link_text(link: tuple[str, LinkKind]) -> str:
    name, kind = link
    return f"{name} ({kind['transport']}{', relayed' if kind['relayed'] else ''})"


def _print_summary(document: Mapping[str, Any], lines: Mapping[str, Mapping[str, int]]) -> None:
    rounds, digests = document["rounds"], document["digests"]
    busiest = max(lines.values(), key=lambda line: line["up_bytes"])
    replicas = apart_text(document.get("consensus")) or (
        f"{agreement(digests['agreed'])} in "
        f"{quantity(digests['rounds_checked'], 'round')} checked, last digest {digests['last']}"
    )
    output.print(
        f"{quantity(rounds['committed'], 'round')} committed, {rounds['skipped']} skipped, "
        f"in {document['seconds']} s; replicas {replicas}; "
        f"{'; '.join(traffic_lines(document['traffic']))}; "
        f"busiest line: {bytes_text(busiest['up_bytes'])} up, "
        f"{bytes_text(busiest['down_bytes'])} down",
        soft_wrap=True,
    )
