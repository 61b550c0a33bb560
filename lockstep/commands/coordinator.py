"""`lockstep coordinator RUN.toml`: one coordinator process, from a run file to the end of the
run.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.journal import JOURNAL_NAME, Journal
from coordinator.journal_check import check_journal
from coordinator.machine.events.inputs import RestartAsked
from coordinator.machine.machine import RunMachine
from coordinator.occasions import Occasions
from coordinator.process import CoordinatorProcess
from coordinator.settings import CoordinatorSettings
from lockstep.commands.check_run import require_trainable
from lockstep.console import messages
from lockstep.page.public import PublicPage
from lockstep.page.routes import Page
from lockstep.page.site import Site
from lockstep.run_file import read_run_file
from lockstep.service.descriptors import raise_limit
from lockstep.service.directory import Owner, claimed
from lockstep.service.invitation import invitation, page_url, reachable
from lockstep.service.journal_copy import readable_journal
from lockstep.service.keys import KEY_NAME, load_or_create_key, read_key
from lockstep.service.notifier import Notifier
from lockstep.service.order_socket import OrderSocket
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import (
    NOTE_NAME,
    STATUS_NAME,
    ServeOptions,
    log_versions,
    read_note,
    serve,
)
from lockstep.service.signals import run_event_loop
from node.system.tls import server_credentials
from protocol.border.join_link import is_loopback
from protocol.errors import SettingsError, StorageError
from protocol.handshake import public_bytes
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec, run_id
from protocol.words import quantity

log = logging.getLogger(__name__)

LOOK_S = 2.0
"""Pause between two looks at what the operator should hear of."""


def coordinate(
    run_file: Path,
    settings: CoordinatorSettings,
    options: ServeOptions,
    *,
    try_model: bool = True,
) -> None:
    """Runs the coordinator until a signal ends it; one that follows a parent ends with its run."""
    spec = read_run_file(run_file)
    if not (settings.directory / JOURNAL_NAME).exists():
        require_trainable(run_file, spec, tries=try_model)
    log_versions((settings, spec))
    with claimed(settings.directory, Owner("coordinator", run=spec.name)):
        if settings.restart_from and not spec.algorithm.facts.replicas_equal:
            raise SettingsError(
                "--restart-from: the nodes of a gossip-adam run have states of their own, and one "
                "that comes anew takes another's: expected a run of another algorithm"
            )
        if source := settings.restart_from:
            restart = _asked(source, spec, settings.directory, force=settings.force)
            settings = replace(settings, restart=restart)
        messages.print(run_event_loop(_coordinate(spec, settings, options)))


def _asked(source: Path, spec: RunSpec, directory: Path, *, force: bool) -> RestartAsked:
    """A restart with the digests of the parameters, which are computed here and need torch."""
    from node.replica.checkpoint_state import read_state

    key = public_bytes(_own_key(directory))
    with messages.status("reading the checkpoint"):
        state = read_state(source, RunInfo(spec, run_id(spec, key), key))
        return RestartAsked(state.sha256, state.state_digest, force)


def check_directory(directory: Path) -> None:
    """Verifies the journal of a stopped coordinator; `StorageError` says where it is damaged."""
    path = directory / JOURNAL_NAME
    if not path.exists() or not (directory / KEY_NAME).exists():
        raise StorageError(
            f"{directory}: expected a coordinator's directory with {JOURNAL_NAME} and {KEY_NAME}"
        )
    key = public_bytes(read_key(directory / KEY_NAME))
    with readable_journal(path) as readable, closing(Journal(readable)) as journal:
        spec = journal.spec()
        with messages.status("replaying the journal"):
            found = check_journal(journal, RunMachine(spec, run_id(spec, key)), key)
    messages.print(
        f"{directory}: sound: {quantity(found.events, 'event')}, "
        f"{quantity(found.commits, 'commit')} up to round {found.head_round}, "
        f"{quantity(found.snapshots, 'snapshot')}",
        soft_wrap=True,
    )


def _own_key(directory: Path) -> Ed25519PrivateKey:
    """The key of the run; a new one for a new run alone."""
    if (directory / JOURNAL_NAME).exists() and not (directory / KEY_NAME).exists():
        raise StorageError(
            f"{directory / KEY_NAME} is missing, which signs the commits of the run in this "
            "directory: put it back from a copy; without it nobody can go on with that run"
        )
    _require_journal(directory)
    return load_or_create_key(directory)


def _require_journal(directory: Path) -> None:
    """Raises `StorageError` where a run was at work and its journal is gone: the same key would
    sign other commits for rounds that nodes have applied. A journal is never empty: its tables are
    written before a coordinator is up.
    """
    path = directory / JOURNAL_NAME
    lost = not path.exists() or path.stat().st_size == 0
    if lost and any((directory / name).exists() for name in (NOTE_NAME, STATUS_NAME)):
        raise StorageError(
            f"{path} is missing or empty, though a run was at work in this directory: put it back "
            f"from a copy, with {JOURNAL_NAME}-wal if there is one; without it nobody can go on "
            "with that run, and a new run takes another --directory"
        )


async def _coordinate(spec: RunSpec, settings: CoordinatorSettings, options: ServeOptions) -> str:
    """Returns how it ended, in words."""
    meter = OverheadMeter()
    key = _own_key(settings.directory)
    credentials = _credentials(key, settings)
    process = CoordinatorProcess(spec, settings, key, meter.measure_overhead, credentials)
    asked = asyncio.Event()
    orders = OrderSocket(settings.directory, process.desk)
    page = Page(process, reachable)

    async def work() -> str:
        async with (
            _public_page(process, page, settings.public_page, meter),
            _notices(process, settings.notify),
        ):
            _say_where(process, settings.directory)
            await orders.start()
            ends = [asyncio.ensure_future(process.finished()), asyncio.ensure_future(asked.wait())]
            finished = f"run {process.run_id} ({spec.name}) is finished"
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
                if ends[0].done():
                    ends[0].result()  # an error in the process is raised here
                    if not options.follow_parent:
                        serving = "pages, status and log stay until this process is stopped"
                        log.info("the run is finished", extra={"reason": serving})
                        await asked.wait()
                    return finished
                return f"stopped; the same command goes on from {settings.directory}"
            finally:
                for end in ends:
                    end.cancel()
                await orders.stop()

    return await serve(
        process,
        work,
        asked.set,
        lambda: process.address,
        options,
        meter=meter,
        page=page.routes(),
    )


@asynccontextmanager
async def _public_page(
    process: CoordinatorProcess, page: Page, listen: str, meter: OverheadMeter
) -> AsyncIterator[None]:
    """Serves the public page to the end of the block, if one is wanted, and lets nodes know it."""
    if not listen:
        yield
        return
    public = PublicPage(Site(page.part), listen, page.model)
    meter.page_port = port = await public.start(raise_limit().page)
    process.tell_page(page_url(process.link, listen, port))
    try:
        yield
    finally:
        await public.stop()


@asynccontextmanager
async def _notices(process: CoordinatorProcess, target: str) -> AsyncIterator[None]:
    """Tells the operator of what comes up to the end of the block, if that is wanted."""
    if not target:
        yield
        return
    notifier = Notifier(target, {"run": process.rounds.spec.name, "run_id": process.run_id})
    occasions = Occasions()

    async def watch() -> None:
        while True:
            view = process.view()
            for occasion in occasions.look(view.rounds, view.history, view.now_ms):
                notifier.tell(occasion)
            await asyncio.sleep(LOOK_S)

    async with notifier.sending():
        watching = asyncio.create_task(watch())
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)


def _say_where(process: CoordinatorProcess, directory: Path) -> None:
    """Tells the operator the line for volunteers, and where the pages are."""
    line = invitation(process.link, process.rounds.state.operator.admission.mode)
    messages.print(line, soft_wrap=True, markup=False)
    if note := read_note(directory / NOTE_NAME):
        messages.print(f"your page of the run: {note['admin']}/", soft_wrap=True)
    if process.page:
        messages.print(f"its page for everybody: {process.page}", soft_wrap=True, markup=False)


def _credentials(
    key: Ed25519PrivateKey, settings: CoordinatorSettings
) -> grpc.ServerCredentials | None:
    """Credentials of TLS for a coordinator that more than this machine can reach."""
    if is_loopback(settings.listen):
        return None
    if settings.plain_text:
        log.warning(
            "without TLS whoever is on the way reads everything, and can take over nodes",
            extra={"listen": settings.listen},
        )
        return None
    return server_credentials(key)
