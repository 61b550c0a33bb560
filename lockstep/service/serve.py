"""Runs a long-lived process: admin port, signals, and a note on disk with its ports.

While a process runs, its directory holds `process.json` (pid, admin URL, address of the
coordinator), so that other commands on this machine find it without ports on their command lines.
The note of a killed process names a pid that is gone; the next start overwrites it. The admin port
opens first, so that it can show the progress of a slow start. A process that ends by itself leaves
its last status in `status.json`.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec
from aiohttp import web

from lockstep import __version__
from lockstep.service.admin import AdminServer, Service
from lockstep.service.descriptors import raise_limit
from lockstep.service.overhead import OverheadMeter
from lockstep.service.signals import until_stopped
from node.system.files import replacing_file, sweep
from protocol.codec.decoding import UNREADABLE

_Result = TypeVar("_Result")
log = logging.getLogger(__name__)

NOTE_NAME = "process.json"
"""Name of the file, in the directory of a running process, that tells its ports."""

STATUS_NAME = "status.json"
"""Name of the file, in the directory of a process that has ended, that holds its last status."""


class Process(Service, Protocol):
    """A coordinator, node or relay."""

    async def start(self, connections_max: int) -> None:
        """Opens state and ports, at which others may open `connections_max` connections."""

    async def stop(self) -> None:
        """Closes them."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Options of every long-lived process."""

    directory: Path
    """Directory of the state and the note."""

    admin: str
    """Address of the admin port, HOST:PORT; port 0 takes a free one."""

    follow_parent: bool = False
    """Whether the process leaves when standard input ends: when the command that started it is
    gone."""


async def serve(
    process: Process,
    work: Callable[[], Awaitable[_Result]],
    leave: Callable[[], None],
    coordinator: Callable[[], str],
    options: ServeOptions,
    *,
    meter: OverheadMeter,
    page: Sequence[web.RouteDef] = (),
) -> _Result:
    """Starts a process, waits until `work` ends and stops it; `leave` asks the work to end early.

    `coordinator` returns the address of the coordinator once the process has started; `meter`
    watches the connections meanwhile; `page` adds routes to the admin port.
    """
    room = raise_limit()
    sweep(options.directory)
    admin = AdminServer(process, options.admin, page, connections_max=room.admin)
    started = asyncio.Event()

    async def life() -> _Result:
        watching = asyncio.create_task(meter.watch())
        try:
            note = {"pid": os.getpid(), "admin": await admin.start(), "coordinator": ""}
            meter.admin_port = admin.port
            _write(options.directory / NOTE_NAME, note)
            await process.start(room.peers)
            started.set()
            _write(options.directory / NOTE_NAME, note | {"coordinator": coordinator()})
            log.info("started", extra={"admin": note["admin"], "coordinator": coordinator()})
            result = await work()
            _write(options.directory / STATUS_NAME, process.status())
            return result
        finally:
            await admin.stop()
            await process.stop()
            watching.cancel()
            (options.directory / NOTE_NAME).unlink(missing_ok=True)

    with meter:
        task = asyncio.ensure_future(life())
        return await until_stopped(
            task,
            lambda: leave() if started.is_set() else _cancel(task),
            follow_parent=options.follow_parent,
        )


def log_versions(settings: object) -> None:
    """Logs the first record of every process: versions; the settings where everything is logged."""
    found = {
        name: _version(name) for name in ("torch", "transformers", "grpcio", "protobuf", "numpy")
    }
    versions = {"lockstep": __version__, "python": platform.python_version(), **found}
    log.info("starting", extra={name: number for name, number in versions.items() if number})
    log.debug("settings", extra={"settings": settings})


def read_note(path: Path) -> dict[str, Any] | None:
    """The document that `serve` left at `path`; None when there is none (yet)."""
    try:
        note = msgspec.json.decode(path.read_bytes())
    except (OSError, *UNREADABLE):
        return None
    return note if isinstance(note, dict) else None


def _write(path: Path, document: Mapping[str, object]) -> None:
    with replacing_file(path) as temporary:
        temporary.write_bytes(msgspec.json.encode(document))


def _cancel(task: "asyncio.Task[Any]") -> None:
    task.cancel()


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return ""
