"""A node that rests when its owner wishes it: by command, by the clock, on battery, beside others.

              pause, or a limit                        resume, and no limit
    working --------------------> leaving -> resting ------------------------> working
       |  finish, stop, run over                |  finish, stop
       '----------------------> ended <---------'

A resting node has left the run politely, and comes back as a node that was away: it catches up. The
process that rests keeps Python and torch in memory, and nothing of the network.
"""

import asyncio
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from prometheus_client import CollectorRegistry

from lockstep.exit_codes import StoppedError
from lockstep.volunteer.control import Wish
from lockstep.volunteer.ledger import Ledger
from lockstep.volunteer.limits import Limits, changed, hold, limits_text
from lockstep.volunteer.machine import on_battery
from lockstep.volunteer.others.watch import OthersWatch
from protocol.clock import length_text
from protocol.errors import SettingsError
from protocol.limits import CONNECTIONS_MAX

log = logging.getLogger("lockstep.join")

LOOK_S = 5.0
"""Pause between two looks at the limits."""

SAVE_S = 60.0
"""Pause between two saves of what was done: a node that is killed loses that of a minute."""

ROUND_COUNTS = ("trained", "counted", "left_out")
"""Counts of a status's rounds."""


class Node(Protocol):
    """A node process, as its owner's wishes need it."""

    registry: CollectorRegistry

    async def start(self, connections_max: int) -> None:
        """Opens everything; peers may open `connections_max` connections."""

    async def run(self) -> str:
        """Works until the run is over or `leave` was called; returns the reason."""

    async def stop(self) -> None:
        """Closes everything."""

    def leave(self) -> None:
        """Finish the round, then end `run`."""

    def limit(self, *, duty_cycle: int, gpu_memory: int, upload: int, download: int) -> None:
        """Keep to these percentages and bytes per second from now on; `SettingsError` where that
        cannot be.
        """

    def status(self) -> dict[str, Any]:
        """The status document."""

    def unready(self) -> str:
        """Why it takes no part in rounds."""


def _never_too_low(limits: Limits, members: int) -> str:
    return ""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the owner is told of the run."""

    judge: Callable[[Limits, int], str] = _never_too_low
    """Tells why limits are too low for the run with a number of members; empty where they are
    not."""
    page: str = ""
    """Address at which everybody sees this node's part; empty where there is none."""


class PausableNode:
    """Makes a node, which is to keep limits, whenever it may work. `make` must be called inside the
    event loop.
    """

    def __init__(
        self,
        make: Callable[[Limits], Node],
        limits: Limits,
        ledger: Ledger,
        others: OthersWatch | None = None,
        run: RunFacts | None = None,
    ) -> None:
        self._run = run or RunFacts()
        self._make, self._limits, self._ledger = make, limits, ledger
        self._others = others or OthersWatch(limits.others)
        self._node: Node | None = None
        self._paused_until_s = 0.0
        self._leaving = ""
        self._changed = asyncio.Event()
        self._used_bytes = 0
        self._earlier: dict[str, int] = {}
        self.last_status: dict[str, Any] = {}
        """The status of the last node that ended."""
        self._stop_now = False
        self._connections_max = CONNECTIONS_MAX
        self.registry = CollectorRegistry()

    # ---- life

    async def start(self, connections_max: int = CONNECTIONS_MAX) -> None:
        """Start the node, unless it must rest from the beginning; peers may open `connections_max`
        connections.
        """
        self._connections_max = connections_max
        self._count_bytes()
        await self._others.look()
        if not self.resting_reason():
            await self._begin()

    async def run(self) -> str:
        """Work and rest until the run is over or the owner ends it; returns the reason in words."""
        looking = asyncio.create_task(self._look())
        try:
            while not self._leaving:
                if self.resting_reason():
                    await self.stop()
                    await self._rest()
                    continue
                if self._node is None:
                    await self._begin()
                await self._work()
            return self._leaving
        finally:
            looking.cancel()
            self._count_bytes()
            self._ledger.save()

    async def stop(self) -> None:
        """Close everything. Safe to call twice."""
        if self._node:
            self.last_status = self.status()
            self._earlier = _work_of(self.last_status)
            await self._node.stop()
            self._node = None

    def leave(self) -> None:
        """Finish the round, then end `run`."""
        self._leaving = self._leaving or "stopped by its owner"
        self._changed.set()
        if self._node:
            self._node.leave()

    async def _begin(self) -> None:
        self._node = self._make(self._limits)
        self.registry = self._node.registry
        await self._node.start(self._connections_max)

    async def _work(self) -> None:
        """Until the node has ended, for which it has a reason, or is put to rest."""
        assert self._node is not None
        running = asyncio.create_task(self._node.run())
        try:
            while not running.done():
                self._changed.clear()
                if self._stop_now:
                    raise StoppedError("stopped at once, as its owner asked")
                if reason := self.resting_reason():
                    log.info("finishing the round, then resting", extra={"reason": reason})
                    self._node.leave()
                    break
                changing = asyncio.create_task(self._changed.wait())
                await asyncio.wait({running, changing}, return_when=asyncio.FIRST_COMPLETED)
                changing.cancel()
            else:
                self._leaving = await running
                return
            await running
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.stop()

    async def _rest(self) -> None:
        await asyncio.to_thread(_give_back_memory)
        log.info("resting", extra={"reason": self.resting_reason()})
        while not self._leaving and self.resting_reason():
            self._changed.clear()
            if self._stop_now:
                raise StoppedError("stopped at once, as its owner asked")
            left_s = min(LOOK_S, max(0.01, self._paused_until_s - time.monotonic()))
            try:
                async with asyncio.timeout(left_s):
                    await self._changed.wait()
            except TimeoutError:
                pass
        if not self._leaving:
            log.info("goes on")

    async def _look(self) -> None:
        """Wakes the work when a limit may have been reached, and keeps its counts."""
        saved_s = time.monotonic()
        while True:
            await asyncio.sleep(LOOK_S)
            self._count_bytes()
            if (now_s := time.monotonic()) >= saved_s + SAVE_S:
                saved_s = now_s
                await asyncio.to_thread(self._ledger.save)
            await self._others.look()
            if self.resting_reason():
                self._changed.set()

    def _count_bytes(self) -> None:
        self._used_bytes = self._ledger.note(self._session(), datetime.now())

    # ---- wishes

    def resting_reason(self) -> str:
        """Why the node must rest now, in words; empty when it may work."""
        if (left_s := self._paused_until_s - time.monotonic()) > 0:
            if math.isinf(left_s):
                return "paused by you until `lockstep resume`"
            return f"paused by you; goes on in {length_text(math.ceil(left_s), 'seconds')}"
        held = hold(self._limits, datetime.now(), self._used_bytes, on_battery())
        return held or self._others.reason()

    def obey(self, wish: Wish) -> dict[str, Any]:
        """Fulfils a wish of the owner; returns the answer in words."""
        match wish.command:
            case "pause":
                length_s = math.inf if wish.seconds is None else max(0.0, wish.seconds)
                self._paused_until_s = time.monotonic() + length_s
                said = f"finishes its round, then rests: {self.resting_reason()}"
            case "resume":
                self._paused_until_s = 0.0
                reason = self.resting_reason()
                said = f"still rests: {reason}" if reason else "goes on"
            case "finish":
                self.leave()
                said = "finishes its round, saves, and ends"
            case "stop":
                self._stop_now = True
                said = "stops at once; work that was not saved is lost"
            case "limit":
                try:
                    said = self._limit(wish.limits)
                except SettingsError as error:
                    return {"refused": str(error)}
            case "me":
                return {"status": self.status()}
            case _:
                known = "pause, resume, finish, stop, limit or me"
                return {"error": f"expected {known}, got {wish.command}"}
        self._changed.set()
        return {"said": said}

    def _limit(self, changes: Mapping[str, Any]) -> str:
        """Changes limits until the node ends; returns those that hold, in words."""
        limits = changed(self._limits, changes)
        self._others.limit(limits.others)
        try:
            if self._node:
                self._node.limit(
                    duty_cycle=limits.duty_cycle,
                    gpu_memory=limits.gpu_memory,
                    upload=limits.upload_limit,
                    download=limits.download_limit,
                )
        except SettingsError:
            self._others.limit(self._limits.others)
            raise
        self._limits = limits
        status = self._node.status() if self._node else self.last_status
        return self._limits_text(status) or "no limits"

    def _limits_text(self, status: Mapping[str, Any]) -> str:
        """The limits that hold, and why one of them is too low for the run."""
        members = status.get("members")
        trouble = self._run.judge(self._limits, members if isinstance(members, int) else 0)
        return "; ".join(filter(None, (limits_text(self._limits), trouble)))

    # ---- for people

    def status(self) -> dict[str, Any]:
        """The status of the node, or of the last one while none works."""
        status = self._session()
        status |= {"limits": self._limits_text(status), "totals": self._ledger.document(status)}
        status["page"] = self._run.page
        if self._node:
            return status
        reason = self._leaving or self.resting_reason()
        word = "ended" if self._leaving else "resting" if reason else "starting"
        return status | {
            "standing": {"state": word, "reason": reason},
            "phase": {"ended": "has ended", "resting": "rests", "starting": "starts"}[word],
            "session": "",
            "bell_in_seconds": None,
        }

    def _session(self) -> dict[str, Any]:
        """The status of the node, or of the last one, with the work of all nodes since this process
        began.
        """
        if self._node is None:
            return dict(self.last_status)
        status = self._node.status()
        work = {
            name: count + self._earlier.get(name, 0) for name, count in _work_of(status).items()
        }
        rounds = {name: work.pop(name) for name in ROUND_COUNTS}
        return status | work | {"rounds": rounds}

    def unready(self) -> str:
        """Why it takes no part in rounds; empty when it does."""
        return self._node.unready() if self._node else f"rests: {self.resting_reason()}"


def _give_back_memory() -> None:
    """What the last node held goes back to the system: the allocators would keep it."""
    from node.system.device import give_back_memory

    give_back_memory()


def _work_of(status: Mapping[str, Any]) -> dict[str, int]:
    """The counts of a status that go on over a rest."""
    rounds = status.get("rounds", {})
    counts = {name: int(rounds.get(name) or 0) for name in ROUND_COUNTS}
    return counts | {name: int(status.get(name) or 0) for name in ("samples", "tokens")}
