"""`lockstep join URL`: one node process, from the first contact to the goodbye."""

import asyncio
import contextlib
import gc
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep import __version__
from lockstep.commands.status import ask
from lockstep.console import bytes_text, messages, own_command
from lockstep.own_packages import NODE_EXTRA
from lockstep.service.contact import first_word, knock
from lockstep.service.directory import Owner, claimed, require_writable
from lockstep.service.home import STATE_NAME, Home, Remembered
from lockstep.service.keys import KEY_NAME, load_or_create_key
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import ServeOptions, log_versions, serve
from lockstep.service.signals import run_event_loop
from lockstep.volunteer import measured, ranks
from lockstep.volunteer.anew import begins_anew
from lockstep.volunteer.consent import ask_once, has_agreed, somebody_is_there, terms
from lockstep.volunteer.control import ControlSocket
from lockstep.volunteer.ledger import Ledger
from lockstep.volunteer.limits import Limits, limits_text
from lockstep.volunteer.measured import FirstLook
from lockstep.volunteer.needs import SEEN, judged, require_within
from lockstep.volunteer.others.watch import OthersWatch
from lockstep.volunteer.pausable import PausableNode, RunFacts
from lockstep.volunteer.screen import in_all, part_text, traffic_bytes
from lockstep.volunteer.watch import watch
from lockstep.volunteer.wishes import Wishes
from node.control.first_contact import remember
from node.settings import NodeSettings
from node.system.malloc import keep_freed_memory
from node.transports.kinds import parse_kinds
from node.transports.libp2p.daemon import find_p2pd
from protocol.addresses import is_page
from protocol.border.join_link import JoinLink, parse_link
from protocol.border.text import clean_document
from protocol.errors import DataError, LockstepError, SettingsError
from protocol.handshake import public_bytes
from protocol.ids import peer_id
from protocol.run_info import RunInfo
from protocol.words import quantity

if TYPE_CHECKING:
    from node.ranks.crew import Crew

log = logging.getLogger("lockstep.join")

MANIFEST_NAME = "manifest.json"
"""The file that tells prepared data from any other directory."""

SESSION = Path("/proc/self/autogroup")
"""File with the niceness of this process's session."""

LOST_KEY = (
    "this computer's key is gone: it joins as somebody new, and what it earned stays with the old "
    "key; if you have a copy, end this node and do `lockstep keys restore FILE --force`"
)

NAME_QUESTION = "a name for this computer, for all to see (Enter: none): "

AGAIN = "left after its round; the same command goes on from here"


def join(settings: NodeSettings, options: ServeOptions, home: Home, wishes: Wishes) -> None:
    """Runs a node until the run is finished, the coordinator removes it, or its owner ends it. It
    starts as any program does, and is nice from the moment at which it has imported everything.

    What can be judged is judged before torch is imported: arguments, then whether the coordinator
    answers, then whether the directory is free, then whether the run takes this node.
    """
    keep_freed_memory()
    wait_asleep(wishes.nice)
    rank = ranks.own_place()
    if rank.rank:
        ranks.follow(settings, rank, partial(be_nice, wishes.nice))
        return
    settings = replace(settings, micro_batch=wishes.micro_batch or settings.micro_batch)
    _check_before_imports(settings)
    require_writable(home.path)
    others = OthersWatch(wishes.limits.others)
    log_versions(settings)
    link = parse_link(settings.coordinator)
    known = home.knows(link.address)
    info = first_word(link, known=known, follow_parent=options.follow_parent)
    place = home.run(info.run_id)
    for line in (*judged(info.spec, wishes.memory, wishes.disk, place), SEEN):
        messages.print(line, soft_wrap=True)
    name = settings.name or home.remembered().name or ""
    settings = replace(settings, directory=place, name=name)
    options = replace(options, directory=place)
    asks = not (home.only or options.follow_parent)
    owner = Owner("node", info.run_id, info.spec.name)
    anew = begins_anew(settings, info.run_id, rank.is_launched)
    with anew as chosen, claimed(place, owner), contextlib.ExitStack() as ending:
        key = _own_key(home)
        if over := _at_the_door(link.with_token(settings.token), info, key, place):
            messages.print(over, soft_wrap=True)
            _say_page(settings, key)
            return
        if asks and not (wishes.yes or has_agreed(place) or somebody_is_there()):
            _agreed(settings, info, wishes, None)  # it says what to add, and nothing is measured
        settings = ranks.shared(chosen, rank)
        crew = ending.enter_context(ranks.crew_of(settings, info.spec, rank))
        settings, seen = _measured(settings, info, wishes, crew, shown=asks)
        if asks and not _agreed(settings, info, wishes, seen):
            messages.print("nothing was started; the same command asks again", soft_wrap=True)
            return
        settings = _named(settings, home, asks=asks and not wishes.yes)
        if wishes.micro_batch is None and seen and seen.rehearsal:
            parts = place, info.run_id, settings, wishes.memory
            measured.remember(*parts, seen.rehearsal)
        remember(place, link.address)
        page = _say_page(settings, key)
        _log_joining(info, key, place)
        limited = (wishes.limits, Ledger(home.path, info.run_id, info.spec.name, page), others)
        facts = RunFacts(partial(measured.judged_limits, info.spec), page)
        joining = _join(settings, options, key, limited, crew, wishes.nice, facts=facts)
        reason, status = run_event_loop(joining)
        if wishes.micro_batch is None:
            measured.reconsider(place, info.run_id, status)
        for line in farewell(status, place):
            messages.print(line, soft_wrap=True)
        messages.print(reason if status.get("finished") else AGAIN, soft_wrap=True)


def _log_joining(info: RunInfo, key: Ed25519PrivateKey, place: Path) -> None:
    log.info(
        "joining",
        extra={
            "run": f"{info.spec.name} ({info.run_id})",
            "me": peer_id(public_bytes(key))[:8],
            "directory": place,
        },
    )


def _say_page(settings: NodeSettings, key: Ed25519PrivateKey) -> str:
    """The address of `own_page`, which is printed too."""
    if page := own_page(_status(settings), key):
        messages.print(f"the page of the run, with your part: {page}", soft_wrap=True)
    return page


def own_page(status: Mapping[str, Any], key: Ed25519PrivateKey) -> str:
    """The address of the run's public page that shows this computer's part; empty: there is none.
    The address is its operator's word.
    """
    url = str(status.get("page") or "")
    return f"{url}?me={peer_id(public_bytes(key))}" if is_page(url) and "?" not in url else ""


def _status(settings: NodeSettings) -> Mapping[str, Any]:
    """The coordinator's document; empty where it cannot be had."""
    with contextlib.suppress(LockstepError):
        return dict(clean_document(ask(settings.coordinator)))
    return {}


def _own_key(home: Home) -> Ed25519PrivateKey:
    """The identity of this computer; the first start makes it."""
    if home.lost_key:
        log.warning(LOST_KEY, extra={"key": home.path / KEY_NAME})
    return load_or_create_key(home.path)


def _at_the_door(link: JoinLink, info: RunInfo, key: Ed25519PrivateKey, place: Path) -> str:
    """Why it would be of no use that this node joins, as the coordinator says before torch is
    loaded; empty where it may come, or has to wait. `RefusedError` where it may not come.
    """
    told = knock(link, info, key)
    match told.WhichOneof("kind"):
        case "refused":
            log.info("has to wait at the door", extra={"reason": told.refused.reason})
        case "finished" if not (place / STATE_NAME).exists():
            return f"there is nothing to do: {told.finished.reason}"
    return ""


def _measured(
    settings: NodeSettings, info: RunInfo, wishes: Wishes, crew: "Crew | None", *, shown: bool
) -> tuple[NodeSettings, FirstLook | None]:
    """The settings with the size of a pass, and what was measured now: None where an earlier start
    has, and where a size is given and nothing of it has to be `shown`.
    """
    finds = wishes.micro_batch is None
    if finds:
        parts = settings.directory, info.run_id, settings, wishes.memory
        if known := measured.remembered(*parts):
            return known, None
    elif not shown or has_agreed(settings.directory):
        return settings, None
    with messages.status("measures this machine: half a minute, more where it is busy"):
        import_node()
        be_nice(wishes.nice)
        seen = measured.look(settings, info, wishes.memory, crew, finds=finds)
    if seen.rehearsal:
        require_within(info.spec, seen.rehearsal, wishes.memory)
        settings = measured.with_passes(settings, seen.rehearsal)
    return settings, seen


def _agreed(settings: NodeSettings, info: RunInfo, wishes: Wishes, seen: FirstLook | None) -> bool:
    """Whether the owner agrees to the run, now or at an earlier start."""
    if has_agreed(settings.directory):
        return True
    status = _status(settings)
    now = measured.members_after(status), measured.steps_of(status)
    lines = terms(info, _device(settings, seen), wishes.limits.daily_transfer, *now)
    if seen:
        lines += measured.bell_lines(seen, settings, info.spec, status)
    lines.append(f"your limits: {limits_text(wishes.limits) or 'none'}")
    return ask_once(settings.directory, lines, yes=wishes.yes)


def _named(settings: NodeSettings, home: Home, *, asks: bool) -> NodeSettings:
    """The settings with a name, which the home keeps: somebody at a terminal is asked, once."""
    while not settings.name and asks and home.remembered().name is None and somebody_is_there():
        try:
            settings = replace(settings, name=input(NAME_QUESTION).strip())
        except SettingsError as error:
            messages.print(str(error), soft_wrap=True)
        else:
            home.remember(Remembered(settings.name))
    if settings.name:
        home.remember(Remembered(settings.name))
    return settings


def _device(settings: NodeSettings, seen: FirstLook | None) -> str:
    """The device that will train, by its name once it was measured, else as the settings say."""
    if seen is None or seen.rehearsal is None:
        return settings.device
    from node.system.device import choose_devices, describe

    return describe(*choose_devices(settings.device))


def wait_asleep(niceness: int) -> None:
    """Has torch's threads sleep while they wait for each other, in a process that will be nice.
    Call it before torch is imported; what the environment says already stays.

    A thread that spins while another one has no core burns the core that both want: on two cores
    that five other programs used, a pass of the default model by two nice threads took 8.4 to 12.2
    s, and 0.6 to 0.8 s by threads that sleep. With both cores free it takes 0.03 and 0.045 s.
    """
    if niceness:
        os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def be_nice(niceness: int) -> None:
    """Lets other programs go first, from now on, with every thread there is and will be.

    Linux weighs sessions first where it groups by them, as on desktops, and threads within each.
    A session of this process's own, such as a service's, is made nice too; a terminal's is not.
    """
    if not hasattr(os, "setpriority"):
        return
    threads = Path("/proc/self/task")  # Linux keeps a niceness for each thread
    for thread in map(int, os.listdir(threads)) if threads.is_dir() else (0,):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            if os.getpriority(os.PRIO_PROCESS, thread) < niceness:
                os.setpriority(os.PRIO_PROCESS, thread, niceness)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):  # sessions are not groups here
            words = SESSION.read_text(encoding="ascii").split()  # /autogroup-25 nice 0
            if words and int(words[-1]) < niceness:
                SESSION.write_text(str(niceness), encoding="ascii")


def import_node() -> None:
    """Imports what a node is made of, as quickly as it goes."""
    from node.model.lean_import import collections_paused, import_transformers

    with collections_paused():
        import_module("node.process")
        import_transformers()
    gc.freeze()  # what was imported stays: no collection has to look at it again


def farewell(status: Mapping[str, Any], place: Path) -> list[str]:
    """The work of this machine, the place of the model and thanks, in words."""
    rounds = status.get("rounds", {})
    lines = []
    if rounds.get("trained"):
        up, down = (bytes_text(traffic_bytes(status, way)) for way in ("up", "down"))
        lines.append(
            f"this machine: counted in {rounds['counted']} of "
            f"{quantity(rounds['trained'], 'round')}, {status.get('tokens', 0):,} tokens, "
            f"{up} up, {down} down"
        )
    if part := part_text(status):
        lines.append(f"your part: {part}")
    if sums := in_all(status):
        lines.append(f"in all: {sums}")
    if (checkpoint := place / "checkpoint").is_dir() and int(status.get("round", -1)) >= 0:
        lines.append(
            f"the model after round {status.get('round')}: {checkpoint}; "
            f"try: {own_command()} generate {shlex.quote(str(checkpoint))}"
        )
    if rounds.get("counted"):
        page = status.get("page")
        lines.append("thank you" + (f"; the run and its model: {page}" if page else ""))
    return lines


def _check_before_imports(settings: NodeSettings) -> None:
    for package in sorted(NODE_EXTRA):
        if find_spec(package) is None:
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
    if "libp2p" in parse_kinds(settings.links):
        find_p2pd()
    if settings.data and not (settings.data / MANIFEST_NAME).is_file():
        raise DataError(
            f"{settings.data}: expected a prepared corpus with a {MANIFEST_NAME}, found none; "
            "prepare it with `lockstep data prepare`"
        )


async def _join(
    settings: NodeSettings,
    options: ServeOptions,
    key: Ed25519PrivateKey,
    limited: tuple[Limits, Ledger, OthersWatch],
    crew: "Crew | None",
    niceness: int,
    *,
    facts: RunFacts,
) -> tuple[str, dict[str, Any]]:
    """Returns how it ended, in words, and the last status. The process is made inside the event
    loop, which its gRPC channel belongs to.
    """
    import_node()
    be_nice(niceness)
    from node.process import NodeProcess

    meter = OverheadMeter(inside=ranks.inside_connections(ranks.own_place()))

    def make(limits: Limits) -> NodeProcess:
        kept = replace(settings, **limits.of_a_node)
        return NodeProcess(kept, key, f"lockstep {__version__}", meter.measure_overhead, crew)

    process = PausableNode(make, *limited, run=facts)
    control = ControlSocket(settings.directory, process)
    await control.start()
    watching = asyncio.create_task(watch(process.status))
    try:
        reason = await serve(
            process, process.run, process.leave, lambda: settings.coordinator, options, meter=meter
        )
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await control.stop()
    return reason, process.last_status
