"""Network namespaces: makes them, enters them, and removes leftovers.

A laboratory's namespaces are called lockstep-ID-NAME. Its owner holds a lock on the file
`/run/lockstep/ID.lock` for as long as it lives; the kernel releases the lock however the owner
ends. So a laboratory whose lock is free is a leftover, and only leftovers are removed without
being asked for.
"""

import contextlib
import ctypes
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from lockstep.wan.lab.iproute import run_command
from lockstep.wan.lab.tc_commands import words
from lockstep.wan.lab.topology import PREFIX
from protocol.errors import UnavailableError

RUN_DIRECTORY = Path("/run/lockstep")
NETNS_DIRECTORY = Path("/run/netns")

END_S = 10.0
"""Longest wait for the killed processes of a namespace; the kernel needs milliseconds."""

_CLONE_NEWNET = 0x40000000
_ID = re.compile(rf"{PREFIX}([0-9a-f]{{6}})-.+")
_libc = ctypes.CDLL(None, use_errno=True)


class Ownership:
    """The lock of a laboratory that is in use."""

    def __init__(self, laboratory: str, *, patient: bool = False) -> None:
        """Takes the lock. When another process has it: waits for that process's end if `patient`,
        else raises `UnavailableError`.
        """
        RUN_DIRECTORY.mkdir(parents=True, exist_ok=True)
        self._path = RUN_DIRECTORY / f"{laboratory}.lock"
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if patient else fcntl.LOCK_NB))
        except BlockingIOError:
            owner = os.read(self._descriptor, 32).decode()
            os.close(self._descriptor)
            raise UnavailableError(
                f"laboratory {laboratory} is in use by process {owner}"
            ) from None
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())

    def release(self) -> None:
        """Releases the lock, after everything has been removed."""
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


@contextlib.contextmanager
def inside(namespace: str) -> Iterator[None]:
    """Puts this thread into a network namespace: sockets opened and processes started within stay
    in it. Nothing may be awaited within, or the event loop's other tasks would run there too.
    """
    with open("/proc/thread-self/ns/net", "rb") as home:
        _enter(NETNS_DIRECTORY / namespace)
        try:
            yield
        finally:
            _set_namespace(home.fileno())


def exists(namespace: str) -> bool:
    """Whether a namespace of this name exists."""
    return (NETNS_DIRECTORY / namespace).exists()


def add(namespace: str, *, forwards: bool) -> None:
    """Makes an empty namespace. Its reverse path filters are off: shaped packets arrive by another
    interface than their answers leave by.
    """
    run_command(words(f"ip netns add {namespace}"))
    switches = {
        "ipv4/ip_forward": int(forwards),
        "ipv4/conf/all/rp_filter": 0,
        "ipv4/conf/default/rp_filter": 0,
        "ipv6/conf/default/disable_ipv6": 1,
    }
    with inside(namespace):
        for name, value in switches.items():
            with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
                Path("/proc/sys/net", name).write_text(f"{value}\n")


def laboratories() -> dict[str, list[str]]:
    """Namespaces by laboratory; a name with the prefix but not of the form is a laboratory of its
    own.
    """
    found: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError):
        for path in sorted(NETNS_DIRECTORY.glob(f"{PREFIX}*")):
            named = _ID.fullmatch(path.name)
            found.setdefault(named[1] if named else path.name, []).append(path.name)
    return found


def remove(namespaces: list[str]) -> None:
    """Kills the processes in the namespaces and removes the namespaces; `UnavailableError` when a
    process does not die.
    """
    deadline_s = time.monotonic() + END_S
    while alive := [pid for namespace in namespaces for pid in _processes(namespace)]:
        for pid in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline_s:
            raise UnavailableError(
                f"processes {alive} in {namespaces} did not die within {END_S:.0f} s"
            )
        time.sleep(0.01)
    for namespace in namespaces:
        try:
            run_command(words(f"ip netns del {namespace}"))
        except UnavailableError:
            if exists(namespace):  # else another process, such as the guard, removed it first
                raise


def remove_leftovers(*, even_in_use: bool = False) -> tuple[list[str], list[str]]:
    """Removes every laboratory without an owner; returns the namespaces removed, and the reasons
    why others were kept.
    """
    removed, kept = [], []
    for laboratory, namespaces in laboratories().items():
        try:
            ownership = Ownership(laboratory)
        except UnavailableError as error:
            if not even_in_use:
                kept.append(str(error))
                continue
            ownership = None
        remove(namespaces)
        removed += namespaces
        if ownership:
            ownership.release()
    return removed, kept


def _processes(namespace: str) -> list[int]:
    if not exists(namespace):
        return []
    with contextlib.suppress(UnavailableError):
        return [int(pid) for pid in run_command(words(f"ip netns pids {namespace}")).split()]
    return []


def _enter(path: Path) -> None:
    try:
        with open(path, "rb") as target:
            _set_namespace(target.fileno())
    except OSError as error:
        raise UnavailableError(
            f"cannot enter network namespace {path.name}: {error.strerror}"
        ) from error


def _set_namespace(descriptor: int) -> None:
    if _libc.setns(descriptor, _CLONE_NEWNET):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
