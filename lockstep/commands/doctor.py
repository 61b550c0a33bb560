"""`lockstep doctor LINK`: whether this machine can take part in a run, and what to do if not.

Each check is a line: what was found, and a remedy where something is wrong. The checks go from the
cheap to the dear; those that need an earlier one's answer are left out when it failed. Nothing is
changed, on this machine or in the run.
"""

import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from rich.table import Table
from rich.text import Text

from lockstep import __version__
from lockstep.commands.status import admitted_nodes, ask
from lockstep.console import NARROWEST_COLUMNS, bytes_text, messages, output, write_json
from lockstep.exit_codes import ExitCode, exit_code
from lockstep.own_packages import NODE_EXTRA, how_to_add
from lockstep.service.contact import ask_run, connect, knock
from lockstep.service.directory import require_writable
from lockstep.service.home import Home
from lockstep.service.keys import KEY_NAME, read_key
from lockstep.volunteer.bell import counted_words, limit_trouble
from lockstep.volunteer.measured import bell_of, members_after, pass_words
from lockstep.volunteer.needs import exchange_text, peak_text
from node.control.addresses import address_towards
from node.settings import NodeSettings
from protocol.addresses import split_address
from protocol.border.join_link import JoinLink, parse_link
from protocol.border.text import clean_document
from protocol.errors import LockstepError
from protocol.planner.parameters import Size, has_layout, size_of
from protocol.planner.sums import SUMMERS, exchanged_bytes
from protocol.run_info import RunInfo
from protocol.runfile import DataSpec, RunSpec
from protocol.words import quantity

if TYPE_CHECKING:
    from node.rehearsal import Rehearsal

STATE_BYTES_PER_PARAMETER = 32
"""Disk of a node for each parameter: the saved state, two snapshots and a checkpoint, each of four
bytes, and one more of each while it is replaced."""

VERDICTS = {"ok": "green", "note": "yellow", "bad": "red"}
"""Verdicts with their colours."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    check: str
    verdict: str
    """One of VERDICTS."""
    found: str
    remedy: str = ""
    """What to do; empty where nothing has to be done."""
    code: int = 0
    """The exit code of `lockstep join` where it would fail for this."""


def doctor(
    settings: NodeSettings, home: Home, json_path: str | None, *, finds_pass: bool = False
) -> int:
    """Prints the findings, or writes them as JSON; returns the exit code that a join would have.
    `finds_pass`: the size of a pass is measured, as a first join does.
    """
    findings = []
    with messages.status("examining"):
        for finding in examine(settings, home, finds_pass=finds_pass):
            findings.append(finding)
    speed = next((each for each in findings if each.check == "speed"), None)
    document = {
        "coordinator": parse_link(settings.coordinator).address,
        "makes_the_bell": None if speed is None else speed.verdict == "ok",
        "checks": [asdict(finding) for finding in findings],
    }
    if json_path is not None:
        write_json(json_path, document)
    if json_path != "-":
        output.print(render(findings))
    return next((finding.code for finding in findings if finding.code), ExitCode.OK)


def render(findings: list[Finding]) -> Table:
    """The findings as a table of at most 80 columns."""
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(width=NARROWEST_COLUMNS - 22, overflow="fold")
    for finding in findings:
        words = Text(finding.found)
        if finding.remedy:
            words.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(finding.verdict, style=VERDICTS[finding.verdict]), finding.check, words)
    return table


def examine(settings: NodeSettings, home: Home, *, finds_pass: bool) -> Iterator[Finding]:
    """Every finding, in order."""
    software = examine_software()
    yield software
    yield (own := examine_place("home", home.path))
    link, info = parse_link(settings.coordinator).with_token(settings.token), None
    address = link.address
    try:
        seconds: list[float] = []
        connect(address, seconds.append)
        info = ask_run(link)
        about = f"run {info.spec.name} ({info.run_id[:8]})"
        words = f"{address} answers in {1000 * seconds[0]:.0f} ms: {about}"
        yield Finding("coordinator", "ok", words)
    except LockstepError as error:
        yield _failed("coordinator", error)
    status: dict[str, Any] = {}
    if info:
        finding, status = _examine_run(settings.coordinator)
        yield finding
        if own.verdict == "ok":
            yield from examine_door(link, info, home, status)
            place = examine_place("run's place", home.run(info.run_id))
            yield from () if place.verdict == "ok" else (place,)
    yield examine_way_in(address)
    yield Finding("clock", "ok", "rounds go by the coordinator's clock; this one's may be wrong")
    if info and own.verdict == software.verdict == "ok":
        yield from _examine_work(settings, info, home, status, finds_pass=finds_pass)


def examine_software() -> Finding:
    """The versions, or the packages that are missing."""
    missing = [package for package in sorted(NODE_EXTRA) if find_spec(package) is None]
    own = f"lockstep {__version__}, Python {platform.python_version()}"
    if missing:
        words = f"{own}; missing: {', '.join(missing)}"
        return Finding("software", "bad", words, how_to_add("node"), ExitCode.USAGE)
    return Finding("software", "ok", f"{own}, torch {version('torch')}")


def examine_way_in(coordinator: str) -> Finding:
    """Whether others can dial this machine, as far as its own address tells."""
    try:
        own, _ = split_address(address_towards(coordinator))
    except LockstepError as error:
        return _failed("way in", error)
    address = ip_address(own)
    if address.is_loopback:
        return Finding("way in", "ok", f"peers on this machine dial {own}")
    if address.is_private:
        words = f"{own} is private: peers elsewhere cannot dial it, this machine dials them"
        remedy = (
            "nothing, if some peer or a relay is public; else forward a port and --advertise it"
        )
        return Finding("way in", "note", words, remedy)
    return Finding("way in", "ok", f"peers dial {own}, if no firewall is between")


def examine_place(check: str, directory: Path) -> Finding:
    """Whether this account can write in a directory, or make it."""
    try:
        require_writable(directory)
    except LockstepError as error:
        return _failed(check, error)
    return Finding(check, "ok", f"{directory} can be written")


def examine_disk(home: Path, needed_bytes: int) -> Finding:
    """Room for what a node keeps, at the nearest directory that exists."""
    place = home.expanduser().absolute()
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    words = f"{bytes_text(free)} free at {place}, up to {bytes_text(needed_bytes)} needed"
    if free >= needed_bytes:
        return Finding("disk", "ok", words)
    return Finding("disk", "note", words, "free space, or name another place with --directory")


def examine_device(used: str, idle: str) -> Finding:
    """The device that trains, and a GPU that does not, with its reason and a remedy."""
    if not idle:
        return Finding("device", "ok", used)
    reason, _, remedy = idle.partition("; ")
    return Finding("device", "note", f"{used}; {reason}", remedy)


def _examine_run(coordinator: str) -> tuple[Finding, dict[str, Any]]:
    """How the run stands, and the coordinator's document; an empty one where there is none."""
    try:
        status = clean_document(ask(coordinator))
    except LockstepError as error:
        return _failed("run", error), {}
    steps, members = status.get("steps", {}), status.get("members", ())
    done = f"{steps.get('committed')} of {steps.get('total')} steps done"
    words = f"{done}, {quantity(len(members), 'member')}"
    if status.get("finished"):
        words, remedy = f"{words}: finished", "join another run"
        return Finding("run", "bad", words, remedy, ExitCode.OK), status
    return Finding("run", "ok", f"{words}: {status.get('reason')}"), status


def examine_door(
    link: JoinLink, info: RunInfo, home: Home, status: Mapping[str, Any]
) -> Iterator[Finding]:
    """Whether the run takes this machine: the coordinator says so of its key, or of a token in the
    hands of any new key.
    """
    path = home.path / KEY_NAME
    if not (path.is_file() or link.token):
        yield from examine_admission(status)
        return
    try:
        key = read_key(path) if path.is_file() else Ed25519PrivateKey.generate()
        told = knock(link, info, key)
    except LockstepError as error:
        yield _failed("admission", error)
        return
    if told.WhichOneof("kind") == "refused":
        yield Finding("admission", "note", told.refused.reason, "nothing, the node waits")
    elif link.token:
        yield Finding("admission", "ok", "the coordinator takes this machine with its token")


def examine_admission(status: Mapping[str, Any]) -> Iterator[Finding]:
    """What a node needs to be let in, where the run does not admit everybody."""
    rule = status.get("operator", {}).get("admission")
    if nodes := admitted_nodes(rule):
        by_token = "a first join with --token TOKEN"
        remedy = by_token if rule == "token" else "a join that names the id to be allowed"
        words = f"only {nodes}, unless this key is admitted already"
        yield Finding("admission", "note", words, remedy)


def _examine_work(
    settings: NodeSettings,
    info: RunInfo,
    home: Home,
    status: Mapping[str, Any],
    *,
    finds_pass: bool,
) -> Iterator[Finding]:
    """What needs torch: device, model, memory, data, and the time of a round."""
    from node.model.check import check_model
    from node.rehearsal import rehearse
    from node.system.device import choose_devices, describe, facts, limit_memory, use_threads
    from node.system.hardware import unused

    try:
        use_threads(settings.threads)
        devices = choose_devices(settings.device)
        device = devices[0]
        limit_memory(device, settings.gpu_memory)
        yield examine_device(describe(*devices), unused(facts()))
        found = check_model(info.spec, device)
    except LockstepError as error:
        yield _failed("model", error)
        return
    yield Finding("model", "ok", f"{found.parameters:,} parameters fit this machine's memory")
    for note in found.notes:
        yield Finding("model", "note", note)
    payloads = info.spec.retention.log_bytes_max
    yield examine_disk(home.path, payloads + STATE_BYTES_PER_PARAMETER * found.parameters)
    yield from _examine_data(settings, info)
    try:
        measured = rehearse(settings, info, finds=finds_pass)
    except LockstepError as error:
        yield _failed("speed", error)
        return
    layout = has_layout(info.spec.model)
    size = size_of(info.spec.model, None if layout else found.parameters)
    yield from examine_rounds(settings, info.spec, measured, size, status)


def examine_rounds(
    settings: NodeSettings,
    spec: RunSpec,
    measured: "Rehearsal",
    size: Size,
    status: Mapping[str, Any],
) -> Iterator[Finding]:
    """What a measured round says: the size of a pass, the speed, when the work will count, and
    whether the limits on the link leave room for it.
    """
    yield Finding("pass", "ok", pass_words(measured))
    yield Finding("memory", "ok", peak_text(spec, size, measured))
    verdict = bell_of(measured, spec, settings.duty_cycle)
    yield Finding("speed", "ok" if verdict.holds else "bad", verdict.words, verdict.remedy)
    yield Finding("counted", "ok", counted_words(spec, status, size))
    rates = {"upload": settings.upload_limit, "download": settings.download_limit}
    if trouble := limit_trouble(spec, size, members=members_after(status), **rates):
        yield Finding("limits", "bad", trouble, "a higher limit, or none")
    yield Finding("upload", "ok", upload_words(spec, size, members_after(status)))


def upload_words(spec: RunSpec, size: Size, members: int) -> str:
    """What a node sends in a round of this many members, and the rate that sends its payload in
    time: once, or to the two summers of each range.
    """
    exchange_s = (spec.rounds.publish_ms + spec.rounds.exchange_ms) / 1000
    payload, results = exchanged_bytes(spec, size, max(members, spec.membership.start_members))
    what, copies = ("its payload to two summers", SUMMERS) if results else ("one payload", 1)
    rate = 8 * copies * payload / exchange_s / 1000
    sent = exchange_text(spec, size, 1, "a round", members)
    return f"{rate:,.0f} kbit/s for {what} in time; {sent}"


def _examine_data(settings: NodeSettings, info: RunInfo) -> Iterator[Finding]:
    from node.data.corpus import Corpus

    data = info.spec.data
    if settings.data is None and (url := settings.data_url or data.url):
        yield _examine_published(url, data)
        return
    if settings.data is None:
        words = f"the run's corpus {data.corpus}"
        yield Finding("data", "ok", f"{words} is prepared at the first join, if it is built in")
        return
    try:
        corpus = Corpus.open(settings.data, verify=True)
        samples, digest = corpus.samples(data.sequence_length), corpus.manifest.digest.hex()
    except LockstepError as error:
        yield _failed("data", error)
        return
    if data.manifest_sha256 not in ("", digest):
        words = f"{settings.data} has manifest {digest[:16]}, the run {data.manifest_sha256[:16]}"
        yield Finding("data", "bad", words, "get the operator's data", ExitCode.DATA)
        return
    yield Finding("data", "ok", f"{settings.data}: {quantity(samples, 'sample')}, undamaged")


def _examine_published(url: str, data: DataSpec) -> Finding:
    """Data at a URL: what a join would fetch first, and one sample."""
    from node.data.remote.reader import open_published

    with tempfile.TemporaryDirectory() as place:
        try:
            corpus = open_published(url, data.manifest_sha256, Path(place), 10**6)
            samples = corpus.samples(data.sequence_length)
            corpus.validation(1, data.sequence_length)
            corpus.close()
        except LockstepError as error:
            return _failed("data", error)
    return Finding("data", "ok", f"{url}: {quantity(samples, 'sample')}, one fetched and undamaged")


def _failed(check: str, error: LockstepError) -> Finding:
    found, _, remedy = str(error).partition("; ")
    return Finding(check, "bad", found, remedy, exit_code(error))
