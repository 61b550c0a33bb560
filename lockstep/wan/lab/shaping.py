"""Gives one interface the rates, delay and loss of a home link, and takes them away again.

    netem        the kernel does everything: egress of the interface, ingress through an ifb device
    tbf+delay    token buckets of the kernel set the rate; `packet_delay` holds packets for delay,
                 jitter and loss

netem is used where the kernel has it. Only IPv4 is shaped; other protocols (ARP) pass. Two commands
use this module:

    lockstep wan shape INTERFACE --profile cable
        a container's entry point: until a signal
    python -m lockstep.wan.lab.shaping INTERFACE LINK-AS-JSON SEED
        the laboratory: until standard input ends; each line of it is another link to change to

Both print one line with the mechanism and the figures, stay, and undo everything when they leave.
Leftovers of a killed one are removed by the next on the same interface, or with the namespace.
"""

import contextlib
import json
import os
import re
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from lockstep.service.signals import stopped_like_ctrl_c
from lockstep.wan.lab.home_link import HomeLink, LinkDirection, home_link
from lockstep.wan.lab.iproute import run_command, run_commands
from lockstep.wan.lab.packet_delay import PacketDelay, real_time
from lockstep.wan.lab.tc_commands import (
    delay_changes,
    delay_commands,
    netem_commands,
    tap_name,
    undo_commands,
    words,
)
from protocol.errors import SettingsError, UnavailableError

Mechanism = Literal["netem", "tbf+delay"]

MTU_MAX = 1500
"""Largest MTU: larger packets fit neither a home line nor the buffers and buckets here."""

TAP_ADDRESS = "169.254.254.254/32"
"""Address that is never used: it is only there for a kernel that wants one on the tap."""


class Shaping:
    """One shaped interface of this network namespace."""

    def __init__(self, interface: str, link: HomeLink, seed: int = 0) -> None:
        """Shapes at once.

        Raises `SettingsError` when there is no such interface, `UnavailableError` when the kernel
        or the rights of this process do not suffice.
        """
        self._interface = interface
        self._delay: PacketDelay | None = None
        self._undo()
        try:
            self.mechanism = self._start(link, seed)
        except BaseException:
            self.stop()
            raise

    def change(self, link: HomeLink) -> None:
        """Changes the figures of the same directions."""
        if self._delay is None:
            run_commands(netem_commands(self._interface, link, "change"))
        else:
            run_commands(delay_changes(self._interface, link))
            self._delay.change(link)

    def hold(self, *, control: bool) -> None:
        """Keeps the interface shaped: with `control` until standard input ends, else until an
        exception.
        """
        descriptor = sys.stdin.fileno() if control else None
        commands = Lines(descriptor) if descriptor is not None else None

        def on_control() -> bool:
            lines = commands.read() if commands else None
            for line in lines or ():
                link = home_link(json.loads(line))
                self.change(link)
                print(in_words(self._interface, link, self.mechanism), flush=True)
            return lines is not None

        if self._delay:
            with real_time():
                self._delay.carry(descriptor, on_control)
            return
        while select.select([] if descriptor is None else [descriptor], [], []) and on_control():
            pass

    def stop(self) -> None:
        """Undoes everything."""
        if self._delay:
            self._delay.close()
        self._undo()

    def _start(self, link: HomeLink, seed: int) -> Mechanism:
        address, mtu = interface_facts(self._interface)
        if mtu > MTU_MAX:
            raise SettingsError(
                f"{self._interface}: expected an MTU of at most {MTU_MAX}, as home lines have, "
                f"got {mtu}"
            )
        if has_netem(self._interface):
            run_commands(netem_commands(self._interface, link))
            return "netem"
        try:
            self._delay = PacketDelay(self._interface, link, seed)
        except OSError as error:
            raise UnavailableError(
                f"cannot shape {self._interface}: this kernel has no netem, and no tap device can "
                f"be opened: {error.strerror}; a container needs the device /dev/net/tun and the "
                "capability NET_ADMIN"
            ) from error
        if link.down:
            accept_other_interface(tap_name("down", self._interface))
        run_commands(delay_commands(self._interface, link, address, mtu))
        return "tbf+delay"

    def _undo(self) -> None:
        for command in undo_commands(self._interface):
            with contextlib.suppress(UnavailableError):
                run_command(command)


class Lines:
    """Whole lines from a descriptor that is read piece by piece."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """Lines that are complete by now, perhaps none; None at the end."""
        if not (more := os.read(self._descriptor, 4096)):
            return None
        *lines, self._rest = (self._rest + more).split(b"\n")
        return lines


def interface_facts(interface: str) -> tuple[str, int]:
    """Hardware address and MTU of an interface; `SettingsError` lists those that exist."""
    listed = json.loads(run_command(("ip", "-j", "link", "show")))
    for known in listed:
        if known["ifname"] == interface:
            return str(known["address"]), int(known["mtu"])
    names = ", ".join(sorted(known["ifname"] for known in listed))
    raise SettingsError(f"no network interface {interface!r} here; expected one of {names}")


def has_netem(interface: str) -> bool:
    """Tries whether the kernel has netem, because nothing else tells."""
    try:
        run_command(words(f"tc qdisc add dev {interface} root netem delay 0ms"))
    except UnavailableError as error:
        if re.search("qdisc kind is unknown|No such file", str(error)):
            return False
        raise
    run_command(words(f"tc qdisc del dev {interface} root"))
    return True


def accept_other_interface(tap: str) -> None:
    """Loosens reverse path filtering: packets arrive by the tap, their answers leave by the shaped
    interface.

    Of the settings of "all" and of the tap the stricter one holds; the loose filter (2) needs some
    address on the tap.
    """
    settings = Path("/proc/sys/net/ipv4/conf")
    own = settings / tap / "rp_filter"
    with contextlib.suppress(OSError):  # read-only in a container; perhaps it is off
        own.write_text("0")
    strictness = max(int(path.read_text()) for path in (own, settings / "all" / "rp_filter"))
    try:
        if strictness == 1:
            own.write_text("2")
    except OSError as error:
        raise UnavailableError(
            "cannot shape: strict reverse path filtering cannot be changed here "
            f"({error.strerror}); start the container with the sysctls "
            "net.ipv4.conf.all.rp_filter=2 and net.ipv4.conf.default.rp_filter=2"
        ) from error
    if strictness:
        run_command(words(f"ip addr add {TAP_ADDRESS} dev {tap}"))


def in_words(interface: str, link: HomeLink, mechanism: str) -> str:
    """The mechanism of a shaped interface and the figures asked for, in one line."""
    ways = ", ".join(
        f"{name} {_way_in_words(way)}"
        for name, way in (("up", link.up), ("down", link.down))
        if way
    )
    return f"{interface}: shaped by {mechanism}; asked for: {ways}"


def shape(interface: str, link: HomeLink, *, control: bool = False, seed: int = 0) -> None:
    """Shapes an interface until this process is told to leave."""
    with contextlib.suppress(KeyboardInterrupt), stopped_like_ctrl_c():
        shaping = Shaping(interface, link, seed)
        try:
            print(in_words(interface, link, shaping.mechanism), flush=True)
            shaping.hold(control=control)
        finally:
            shaping.stop()


def _way_in_words(way: LinkDirection) -> str:
    rate = f"{way.rate_bit_s / 1e6:g} Mbit/s" if way.rate_bit_s else "any rate"
    return f"{rate} {1e3 * way.delay_s:g} ms ± {1e3 * way.jitter_s:g} ms {100 * way.loss:g} % lost"


def main(arguments: Sequence[str]) -> None:
    """The process of one link in the laboratory: INTERFACE, LINK as JSON, SEED."""
    interface, document, seed = arguments
    try:
        shape(interface, home_link(json.loads(document)), control=True, seed=int(seed))
    except (SettingsError, UnavailableError) as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
