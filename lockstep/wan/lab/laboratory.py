"""A laboratory: computers in network namespaces, each behind a home link of its own.

    cable = HomeLink(LinkDirection(50_000_000, 0.0125), LinkDirection(250_000_000, 0.0125))
    homes = (Home("node-0", cable), Home("node-1", nat="masquerade"), Home("relay"))
    with Laboratory(Plan(homes)) as lab:
        server = lab.start("relay", [sys.executable, "-m", "http.server"])  # a process inside
        with lab.inside("node-1"):                                          # a socket inside
            client = socket.create_connection((lab.address("relay"), 8000))
        lab.cut("node-0"); lab.restore("node-0"); lab.slow("node-0", 0.1); lab.move("node-0")

Needs root and iproute2. Leaving the block kills every process in the namespaces and removes them. A
guard process does so when this one is killed, and `lockstep wan down` when the guard was killed
too.
"""

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from lockstep.exit_codes import UsageError
from lockstep.wan.lab import namespaces
from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.iproute import run_command, run_commands
from lockstep.wan.lab.nat import masquerade
from lockstep.wan.lab.packet_delay import real_time
from lockstep.wan.lab.probe import ProbedLine, measure, udp_socket
from lockstep.wan.lab.tc_commands import words
from lockstep.wan.lab.topology import Placed, Plan, Shaped, address_commands
from protocol.errors import LocalProtocolError, UnavailableError

Direction = Literal["both", "up", "down"]


@dataclass(frozen=True, slots=True)
class Counters:
    """The kernel's counts at the internet's end of a home's line, in bytes of whole frames."""

    up_bytes: int
    """Bytes that arrived from the home."""

    down_bytes: int
    """Bytes sent to the home; its line may have lost some."""


class Shaper:
    """The process that shapes one link."""

    def __init__(self, shaped: Shaped, seed: int) -> None:
        document = json.dumps(shaped.link.document())
        command = [
            sys.executable,
            "-m",
            "lockstep.wan.lab.shaping",
            shaped.interface,
            document,
            str(seed),
        ]
        self.shaped = shaped
        self.said = ""
        """Last line of the process's output."""
        with namespaces.inside(shaped.namespace):
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )

    @property
    def mechanism(self) -> str:
        """The mechanism by which the link is shaped."""
        return self.said.partition(" by ")[2].partition(";")[0]

    def wait(self) -> None:
        """Waits until the process has done the last order; `UnavailableError` when it could not."""
        assert self._process.stdout
        self.said = self._process.stdout.readline().strip()
        self.check()

    def check(self) -> None:
        """Raises `UnavailableError` when the process is gone: its link carries nothing any more."""
        if not self.mechanism or self._process.poll() is not None:
            raise UnavailableError(
                f"link of {self.shaped.namespace}: {self.said or 'its process was killed'}"
            )

    def change(self, link: HomeLink) -> None:
        """Changes the figures of the link."""
        assert self._process.stdin
        try:
            print(json.dumps(link.document()), file=self._process.stdin, flush=True)
        except BrokenPipeError:
            self.said = ""
        self.wait()

    def stop(self) -> None:
        """Kills the process; its namespace is about to be removed."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Laboratory:
    """A plan that is built on entry and removed on exit."""

    def __init__(self, plan: Plan, *, seed: int = 0) -> None:
        """`seed` is that of jitter and loss where `packet_delay` draws them."""
        self.id = secrets.token_hex(3)
        self.places = plan.placed(self.id)
        self._plan = plan
        self._seed = seed
        self._shapers: dict[str, Shaper] = {}
        self._guard: subprocess.Popen[bytes] | None = None
        self._ownership: namespaces.Ownership | None = None

    def __enter__(self) -> "Laboratory":
        if reason := unable():
            raise UsageError(reason)
        self._ownership = namespaces.Ownership(self.id)
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def mechanism(self) -> str:
        """The mechanism that shapes links: "netem" or "tbf+delay"; empty without shaped links."""
        return next((shaper.mechanism for shaper in self._shapers.values()), "")

    @property
    def guard_pid(self) -> int | None:
        """Process ID of the guard; None while nothing is built."""
        return self._guard.pid if self._guard else None

    def close(self) -> None:
        """Removes everything; a second call does nothing."""
        for shaper in self._shapers.values():
            shaper.stop()
        self._shapers.clear()
        if self._ownership:
            namespaces.remove(
                [name for name in self._plan.namespaces(self.id) if namespaces.exists(name)]
            )
            self._ownership.release()
            self._ownership = None
        if self._guard:
            self._guard.communicate()
            self._guard = None

    def check(self) -> None:
        """Raises `UnavailableError` when a link's process is gone."""
        for shaper in self._shapers.values():
            shaper.check()

    def address(self, name: str) -> str:
        """Address of a computer's own interface; behind NAT a private one."""
        return self._place(name).address

    def public_address(self, name: str) -> str:
        """Address at which the internet sees a computer until it moves."""
        return self._place(name).public_address()

    def command(self, name: str, arguments: Sequence[str]) -> list[str]:
        """The command that runs another one on a computer, for `asyncio.create_subprocess_exec` and
        the like.
        """
        return ["ip", "netns", "exec", self._place(name).namespace, *arguments]

    def start(self, name: str, arguments: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """Starts a process on a computer; `options` are those of `subprocess.Popen`."""
        with self.inside(name):
            return subprocess.Popen(arguments, **options)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """Puts this thread onto a computer's network; nothing may be awaited within, see
        `namespaces.inside`.
        """
        with namespaces.inside(self._place(name).namespace):
            yield

    def cut(self, name: str, way: Direction = "both") -> None:
        """Unplugs a line, or loses every packet of one direction of a shaped one."""
        if way == "both":
            self._switch(name, "down")
            return
        link = self._link(name)
        deaf = replace(getattr(link, way) or LinkDirection(), loss=1.0)
        self._shaper(name).change(replace(link, **{way: deaf}))

    def restore(self, name: str) -> None:
        """Undoes `cut` and `slow`: the line is as planned again."""
        self._switch(name, "up")
        if link := self._place(name).home.link:
            self._shaper(name).change(link)

    def slow(self, name: str, factor: float) -> None:
        """Multiplies a line's planned rates by `factor`."""
        self._shaper(name).change(self._link(name).slowed(factor))

    def move(self, name: str, *, back: bool = False) -> None:
        """Gives a home its other public address, like a laptop that moves to another network."""
        run_commands(address_commands(self._place(name), moved=not back))

    def counters(self, name: str) -> Counters:
        """Reads the traffic of a home's line so far."""
        place = self._place(name)
        shown = json.loads(
            run_command(words(f"ip -n {place.internet} -s -j link show dev {place.port}"))
        )
        counts = shown[0]["stats64"]
        return Counters(counts["rx"]["bytes"], counts["tx"]["bytes"])

    def measure(self, name: str) -> ProbedLine:
        """Measures a home's line while nothing else uses it: about three seconds."""
        place = self._place(name)
        with self.inside(name):
            home = udp_socket(place.address)
        with namespaces.inside(place.internet):
            far = udp_socket(place.gateway)
        with home, far, real_time():
            return measure(home, far, place.home.link or HomeLink())

    def _build(self) -> None:
        # In a session of its own: Ctrl-C, which ends this process, must not end its guard.
        command = [sys.executable, "-m", "lockstep.wan.lab.guard", self.id]
        self._guard = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)
        for namespace, forwards in self._plan.forwarding(self.id):
            namespaces.add(namespace, forwards=forwards)
        run_commands(self._plan.commands(self.id))
        for router in self._plan.routers(self.id):
            with namespaces.inside(router):
                masquerade()
        for number, shaped in enumerate(self._plan.shaped(self.id)):
            self._shapers[f"{shaped.namespace} {shaped.interface}"] = Shaper(
                shaped, self._seed + number
            )
        for shaper in self._shapers.values():
            shaper.wait()

    def _place(self, name: str) -> Placed:
        if name not in self.places:
            raise LocalProtocolError(f"expected one of {', '.join(self.places)}, got {name!r}")
        return self.places[name]

    def _link(self, name: str) -> HomeLink:
        link = self._place(name).home.link
        if link is None:
            raise LocalProtocolError(
                f"the line of {name} is not shaped: it can only be cut in both directions"
            )
        return link

    def _shaper(self, name: str) -> Shaper:
        place = self._place(name)
        self._link(name)
        return self._shapers[f"{place.edge} {place.edge_interface}"]

    def _switch(self, name: str, state: str) -> None:
        place = self._place(name)
        run_command(words(f"ip -n {place.internet} link set {place.port} {state}"))


def unable() -> str:
    """The reason why no laboratory can be built here; empty when one can."""
    if sys.platform != "linux":
        return f"a WAN laboratory needs Linux's network namespaces; this is {sys.platform}"
    if os.geteuid():
        return "a WAN laboratory needs root, for network namespaces: run the command with sudo"
    if missing := [tool for tool in ("ip", "tc") if not shutil.which(tool)]:
        return f"a WAN laboratory needs the commands {' and '.join(missing)}: install iproute2"
    return ""
