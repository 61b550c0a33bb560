"""Replaces the machine below the product's modules for as long as a world lasts.

Clock, chance and files are looked up by module, so each module of the product that imports `time`,
`random`, `secrets` or `os` gets the world's: the clock of the process that runs, the world's
chance, disks in memory. The ranges of a snapshot can be made small, so that there are several. The
coordinator and relays take the model for that of the stand-in. The exchange checks its invariants
after each event.
"""

import contextlib
import logging
import os
import random
import secrets
import sys
import time
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from coordinator.machine.state import run
from node.gossip import payload_log
from node.relay import adding
from node.replica import snapshot
from protocol.limits import CHUNK_ENTRIES
from protocol.planner.parameters import Size
from tests.simulation import disk
from tests.simulation.invariants import checks
from tests.simulation.stand_in import CHUNKS
from tests.simulation.world import PROCESS, World

PACKAGES = ("protocol", "coordinator", "node")


class _Shim:
    """A module with some names replaced."""

    def __init__(self, module: ModuleType, **names: Any) -> None:
        self._module = module
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _clock(world: World) -> _Shim:
    def monotonic_ns() -> int:
        process = PROCESS.get()
        return 1000 * (process.monotonic_us(world.now_us) if process else world.now_us)

    def wall_ns() -> int:
        process = PROCESS.get()
        return 1000 * (
            1_700_000_000_000_000 + world.now_us + (process.wall_offset_us if process else 0)
        )

    return _Shim(
        time,
        monotonic_ns=monotonic_ns,
        monotonic=lambda: monotonic_ns() / 1e9,
        perf_counter=lambda: monotonic_ns() / 1e9,
        time_ns=wall_ns,
        time=lambda: wall_ns() / 1e9,
    )


@contextlib.contextmanager
def installed(world: World, part_bytes: int) -> Iterator[None]:
    """Let the product run on this world's machine; at the end everything is restored."""
    files = _Shim(os, replace=disk.replace, truncate=disk.truncate)
    replaced: dict[ModuleType, Any] = {
        time: _clock(world),
        random: _Shim(world.random),  # type: ignore[arg-type]
        secrets: _Shim(secrets, token_bytes=world.random.randbytes),
    }
    changes: list[tuple[Any, str, Any]] = checks()
    changes += [
        (module, name, shim)
        for path, module in sorted(sys.modules.copy().items())  # threads import, too
        if path.partition(".")[0] in PACKAGES
        for original, shim in replaced.items()
        for name in [original.__name__]
        if getattr(module, name, None) is original
    ]
    changes += [
        (payload_log, "os", files),
        (snapshot, "os", files),
        (snapshot, "replacing_file", disk.replacing_file),
    ]
    size = Size(CHUNKS * CHUNK_ENTRIES, CHUNKS)
    changes += [(module, "size_of", lambda model: size) for module in (run, adding)]
    changes.append((snapshot, "RANGE_BYTES", min(snapshot.RANGE_BYTES, 8 * part_bytes)))
    before = [(module, name, getattr(module, name)) for module, name, _ in changes]
    silent = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    for module, name, value in changes:
        setattr(module, name, value)
    try:
        yield
    finally:
        for module, name, value in before:
            setattr(module, name, value)
        logging.disable(silent)
