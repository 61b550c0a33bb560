"""Looks at the others on this machine: the shell of `lockstep.volunteer.others.quiet`."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

from lockstep.service.overhead import ProcessTree
from lockstep.volunteer.others import load, presence
from lockstep.volunteer.others.load import CpuLoad, gpu_load, is_known
from lockstep.volunteer.others.presence import Presence
from lockstep.volunteer.others.quiet import Quiet, QuietLimits, Seen
from protocol.errors import SettingsError

Reader = Callable[[], float | None]
"""Function that reads one number; None where nothing tells it. May block."""


@dataclass(frozen=True, slots=True)
class Readers:
    """The readers of the machine's state."""

    idle_s: Reader
    """Seconds since a person's last input."""
    cpu_percent: Reader
    """Part of all cores that other programs have used since the last call."""
    gpu_percent: Reader
    knows_load: Callable[[], bool] = is_known
    """Whether `cpu_percent` can tell anything."""
    clock_s: Callable[[], float] = time.monotonic


def own_readers() -> Readers:
    """The readers of this machine."""
    tree = ProcessTree()
    return Readers(Presence().idle_s, CpuLoad(tree).percent, gpu_load(tree))


class OthersWatch:
    """Keeps the judgement of the newest look. `readers` are made when a limit first needs them.

    Raises `SettingsError` for a limit that cannot be kept on this system.
    """

    def __init__(self, limits: QuietLimits, readers: Callable[[], Readers] = own_readers) -> None:
        self._make, self._readers = readers, None if limits.unlimited else readers()
        if self._readers:
            require_readable(limits, self._readers)
        self._quiet = Quiet(limits)

    async def look(self) -> None:
        """Reads the machine, if a limit asks for it."""
        readers, quiet = self._readers, self._quiet
        if readers is None or quiet.limits.unlimited:
            return
        seen = await asyncio.to_thread(_seen, readers, quiet.limits)
        if quiet is self._quiet:  # the limits were not changed meanwhile
            quiet.look(seen)

    def reason(self) -> str:
        """Why the node must rest, in words; empty when the machine is quiet."""
        return "" if self._quiet.limits.unlimited else self._quiet.reason()

    def limit(self, limits: QuietLimits) -> None:
        """Other limits hold from the next look on; `SettingsError` for those that cannot be
        kept here.
        """
        if limits == self._quiet.limits:
            return
        if not limits.unlimited:
            self._readers = self._readers or self._make()
            require_readable(limits, self._readers)
        self._quiet = Quiet(limits)


def require_readable(limits: QuietLimits, readers: Readers) -> None:
    """`SettingsError` for a limit on something that this system does not tell."""
    if limits.when_idle and readers.idle_s() is None:
        raise SettingsError(presence.UNKNOWN)
    if limits.other_load and not readers.knows_load():
        raise SettingsError(load.UNKNOWN)


def _seen(readers: Readers, limits: QuietLimits) -> Seen:
    """One look, without what no limit asks for."""
    idle_s = readers.idle_s() if limits.when_idle else None
    loads = (readers.cpu_percent(), readers.gpu_percent()) if limits.other_load else (None, None)
    return Seen(readers.clock_s(), idle_s, *loads)
