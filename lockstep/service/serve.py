"""The shell of a long-lived process: admin port, signals, and a note on disk that says where to
find it.

While a process runs its directory holds `process.json` (pid, admin URL, the coordinator's address),
so that other commands on the machine need no ports on their command lines. The note of a killed
process names a pid that is gone; the next start overwrites it. The admin port opens first: a slow
start says there what it does. A process that comes to its end leaves `status.json`, its last
status.
"""

import asyncio
import logging
import os
import platform
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from lockstep import __version__
from lockstep.service.admin import AdminServer, Service
from lockstep.service.overhead import OverheadMeter
from lockstep.service.signals import until_stopped
from node.system.files import replacing_file

_Result = TypeVar("_Result")
_log = logging.getLogger(__name__)

NOTE_NAME = "process.json"
"""File in a process's directory that says where its ports are."""


STATUS_NAME = "status.json"
"""File in a process's directory that holds its last status once it has ended."""


class Process(Service, Protocol):
    """A coordinator or a node."""

    async def start(self) -> None:
        """Opens state and ports."""

    async def stop(self) -> None:
        """Closes them."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """How a process is run, whatever it does."""

    directory: Path
    """Where the process keeps its state, and its note."""

    admin: str
    """Address of the admin port, host:port; port 0 takes a free one."""

    follow_parent: bool = False
    """Leave when standard input ends, that is when the command that started this process is
    gone."""


async def serve(
    process: Process,
    work: Callable[[], Awaitable[_Result]],
    leave: Callable[[], None],
    coordinator: Callable[[], str],
    options: ServeOptions,
    *,
    line: OverheadMeter,
) -> _Result:
    """Starts a process, waits for the end of its work and stops it; `leave` asks the work to end
    early.

    `coordinator` tells the coordinator's address once the process has started; `line` is watched
    while it runs.
    """
    admin = AdminServer(process, options.admin)
    started = asyncio.Event()

    async def life() -> _Result:
        watching = asyncio.create_task(line.watch())
        try:
            note = {"pid": os.getpid(), "admin": await admin.start(), "coordinator": ""}
            line.admin_port = admin.port
            _write(options.directory / NOTE_NAME, note)
            await process.start()
            started.set()
            _write(options.directory / NOTE_NAME, note | {"coordinator": coordinator()})
            _log.info("started", extra={"admin": note["admin"], "coordinator": coordinator()})
            result = await work()
            _write(options.directory / STATUS_NAME, process.status())
            return result
        finally:
            await admin.stop()
            await process.stop()
            watching.cancel()
            (options.directory / NOTE_NAME).unlink(missing_ok=True)

    with line:
        task = asyncio.ensure_future(life())
        return await until_stopped(
            task,
            lambda: leave() if started.is_set() else _cancel(task),
            follow_parent=options.follow_parent,
        )


def log_versions(settings: object) -> None:
    """The first record of every process: what runs here, and with which settings."""
    found = {
        name: _version(name) for name in ("torch", "transformers", "grpcio", "protobuf", "numpy")
    }
    versions = {"lockstep": __version__, "python": platform.python_version(), **found}
    _log.info(
        "starting",
        extra={name: number for name, number in versions.items() if number}
        | {"settings": settings},
    )


def read_note(path: Path) -> dict[str, Any] | None:
    """A document that `serve` left at `path`, or None when there is none (yet)."""
    try:
        note = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError):
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
