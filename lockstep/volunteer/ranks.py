"""A node of many ranks at the front door: this process's part in it, by environment and devices.

    torchrun ... -m lockstep join LINK     each process finds its rank in its environment
    lockstep join LINK --device all        this process is rank 0, and starts the others

A follower asks nobody, opens nothing and says nothing: what it has to say, rank 0 says for it.
"""

import atexit
import os
import platform
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

from lockstep import __version__
from lockstep.console import messages
from lockstep.exit_codes import ExitCode
from lockstep.service.overhead import InsideConnections, ProcessTree
from lockstep.service.signals import SIGNALS
from node.ranks.orders import Hello
from node.ranks.place import RankPlace, place_of
from node.settings import NodeSettings
from protocol.errors import LockstepError
from protocol.runfile import RunSpec

if TYPE_CHECKING:
    import torch

    from node.ranks.crew import Crew

ALIKE = ("coordinator", "data", "data_url")
"""Settings that are the same on all ranks: another value is a mistake of who starts them."""


def own_place() -> RankPlace:
    """The rank of this process; `SettingsError` for variables that make no sense."""
    return place_of(os.environ)


def shared(settings: NodeSettings, place: RankPlace) -> NodeSettings:
    """The settings with the number of ranks; those on the CPUs of one machine share its threads."""
    if place.is_launched or settings.device == "all" or "," in settings.device:
        # Before torch is imported: its warnings of waits and of closed connections are no news.
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if place.is_launched:
        ranks, here = place.count, place.local_count
    else:
        ranks = here = _devices(settings.device)
    if here > 1 and not settings.threads and "cuda" not in settings.device:
        settings = replace(settings, threads=max(1, (os.cpu_count() or 1) // here))
    return replace(settings, ranks=ranks)


def inside_connections(place: RankPlace) -> InsideConnections:
    """The connections that leave the node of this process nowhere."""
    if not place.is_launched:
        return InsideConnections()
    return InsideConnections(place.port, ProcessTree(os.getppid()).sockets)


@contextmanager
def crew_of(settings: NodeSettings, spec: RunSpec, place: RankPlace) -> "Iterator[Crew | None]":
    """The ranks of this node, which this process leads; None where it is alone.

    Raises `SettingsError` and `VersionError` for ranks that are unlike, `DeviceError` for one that
    fails, `UnavailableError` for one that does not come, `AddressInUseError`.
    """
    if settings.ranks == 1:
        yield None
        return
    from node.ranks.launch import Children, children
    from node.ranks.line import RankLine, loopback_only, patience_of
    from node.ranks.meeting import meet
    from node.system.device import use_threads

    with ExitStack() as ending:
        started: Children | None = None
        if not place.is_launched:
            loopback_only()
            started = ending.enter_context(children(settings.ranks, os.environ))
            place = started.place
        use_threads(settings.threads)
        hello, device = _hello(settings, place)
        line = RankLine(place, started.listener_fd if started else None)
        ended = started.ended if started else dict
        with messages.status("waits for the other ranks of this node"):
            crew = meet(line, device, hello, patience_of(spec), ended)
        try:
            yield crew
        finally:
            crew.close()
            if crew.fault and started:
                started.kill()  # nobody waits for a rank that hangs
            elif crew.fault:
                _end_at_once()


def follow(settings: NodeSettings, place: RankPlace, be_nice: Callable[[], None]) -> None:
    """Obey rank 0 until it says leave. Signals are for rank 0, which finishes its round with the
    help of this one. `be_nice` lets other programs go first, once everything is imported.
    """
    threads = shared(settings, place).threads
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    from node.model.lean_import import collections_paused, import_transformers

    with collections_paused():
        from node.ranks.following import FollowingRank
        from node.ranks.line import RankLine
        from node.system.device import use_threads

        import_transformers()
    be_nice()
    use_threads(threads)
    hello, device = _hello(settings, place)
    try:
        FollowingRank(RankLine(place), device).follow(hello)
    except BaseException:
        _end_at_once()
        raise


def _end_at_once() -> None:
    """Has this process end as soon as it would otherwise wait for the exchanges of torch, in which
    a rank that is stopped still hangs.
    """
    atexit.register(os._exit, ExitCode.DEVICE)


def _hello(settings: NodeSettings, place: RankPlace) -> "tuple[Hello, torch.device]":
    """What this rank says about itself, and its device."""
    import torch

    from node.system.device import describe, device_of_rank

    release = f"lockstep {__version__} with torch {version('torch')}"
    alike = {name: str(getattr(settings, name) or "") for name in ALIKE}
    host = platform.node()[:80]
    try:
        device = device_of_rank(settings.device, place.local_rank)
        if device.type == "cuda":
            torch.cuda.set_device(device)
        return Hello(release, alike, host, describe(device), device.type), device
    except LockstepError as error:
        if place.rank == 0:
            raise
        return Hello(release, alike, host, error=str(error)), torch.device("cpu")


def _devices(wanted: str) -> int:
    """The number of devices that a list names, or of all."""
    if wanted != "all":
        return len(wanted.split(","))
    from node.system.device import choose_devices

    return len(choose_devices(wanted))
