"""Gives one interface the manners of a home link, and takes them away again.

    netem        egress of the interface, and ingress through an ifb device: the kernel does everything
    tbf+relay    the kernel's token buckets set the rate, `relay.py` holds packets for delay, jitter and loss

netem is used where the kernel has it. Only IPv4 is shaped; other protocols (ARP) pass. A
container's entry point and the namespaces of the laboratory both use this module:

    lockstep.wan.lab.shaping INTERFACE --profile cable                a container: until a signal
    python -m lockstep.wan.lab.shaping INTERFACE LINK-AS-JSON SEED    the laboratory: until the end of standard input, where
                                                                each further line is another link to change to

Both print one line that says what was done and by which mechanism, stay, and undo everything when
they leave. What a killed one left is cleared away by the next on the same interface, and by the end
of the namespace.
"""

import contextlib
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from lockstep.wan.lab.home_link import HomeLink, LinkDirection, home_link
from lockstep.wan.lab.packet_delay import PacketDelay, real_time, tap_name
from protocol.errors import SettingsError, UnavailableError

Mechanism = Literal["netem", "tbf+relay"]
Command = tuple[str, ...]
"""Words of one `ip` or `tc` command."""

MTU_MAX = 1500
"""Larger packets fit neither a home line nor the buffers and buckets here, which are made for
it."""

TAP_ADDRESS = "169.254.254.254/32"
"""Never used; only there where the kernel wants one."""

_ALL_IPV4 = "protocol ip prio 1 u32 match u32 0 0 flowid :1 action mirred egress redirect dev"


def words(text: str) -> Command:
    """A command from a line."""
    return tuple(text.split())


def netem(way: LinkDirection) -> str:
    """Arguments of netem for one way."""
    parts = [f"netem limit {way.held_frames} delay {_us(way.delay_s)} {_us(way.jitter_s)}"]
    parts += [f"loss {100 * way.loss:g}%"] if way.loss else []
    # netem sends in order what a rate queues, so jitter reorders nothing.
    parts += [f"rate {way.rate_bit_s}bit"] if way.rate_bit_s else []
    return " ".join(parts)


def tbf(way: LinkDirection) -> str:
    """Arguments of the token bucket for one way; a plain queue where no rate is asked."""
    if not way.rate_bit_s:
        return f"pfifo limit {way.held_frames}"
    return f"tbf rate {way.rate_bit_s}bit burst {way.burst_bytes} limit {way.queue_bytes}"


def netem_commands(interface: str, link: HomeLink, verb: str = "add") -> list[Command]:
    """Shapes an interface by netem; with the verb "change" one that is shaped already."""
    up, down, ifb = link.up, link.down, tap_name("down", interface)
    lines = []
    if up:
        # Packets that leave in one piece of many segments would be lost, and counted, as one.
        lines += [f"ip link set {interface} gso_max_segs 1"] if verb == "add" else []
        lines += [f"tc qdisc {verb} dev {interface} root {netem(up)}"]
    if down and verb == "add":
        lines += [
            f"ip link add {ifb} type ifb",
            f"ip link set {ifb} up",
            f"tc qdisc add dev {interface} clsact",
        ]
        lines += [f"tc filter add dev {interface} ingress {_ALL_IPV4} {ifb}"]
    if down:
        lines += [f"tc qdisc {verb} dev {ifb} root {netem(down)}"]
    return [words(line) for line in lines]


def relay_commands(interface: str, link: HomeLink, address: str, mtu: int) -> list[Command]:
    """Leads an interface's packets through the taps of a relay, which must be open. `address`: its
    own MAC.
    """
    lines = [f"tc qdisc add dev {interface} clsact"]
    for name, way, hook in (("up", link.up, "egress"), ("down", link.down, "ingress")):
        if way:
            tap = tap_name(name, interface)
            lines += [f"ip link set {tap} address {address}"] if name == "down" else []
            lines += [
                f"ip link set {tap} mtu {mtu} txqueuelen {way.held_frames} up",
                f"tc qdisc add dev {tap} root {tbf(way)}",
                f"tc filter add dev {interface} {hook} {_ALL_IPV4} {tap}",
            ]
    return [words(line) for line in lines]


def relay_changes(interface: str, link: HomeLink) -> list[Command]:
    """Other rates for an interface that is shaped already."""
    ways = (("up", link.up), ("down", link.down))
    return [
        words(f"tc qdisc replace dev {tap_name(name, interface)} root {tbf(way)}")
        for name, way in ways
        if way
    ]


def undo_commands(interface: str) -> list[Command]:
    """Removes whatever either mechanism left; each may fail where there is nothing. Taps go with
    their process.
    """
    return [
        words(f"tc qdisc del dev {interface} clsact"),
        words(f"tc qdisc del dev {interface} root"),
        words(f"ip link del {tap_name('down', interface)}"),
    ]


class Shaping:
    """One shaped interface of this network namespace."""

    def __init__(self, interface: str, link: HomeLink, seed: int = 0) -> None:
        """Shapes at once; raises `SettingsError` where there is no such interface,
        `UnavailableError` where the kernel, or the rights of this process, do not do.
        """
        self._interface = interface
        self._relay: PacketDelay | None = None
        self._undo()
        try:
            self.mechanism = self._start(link, seed)
        except BaseException:
            self.stop()
            raise

    def change(self, link: HomeLink) -> None:
        """Other figures for the same ways."""
        if self._relay is None:
            run_all(netem_commands(self._interface, link, "change"))
        else:
            run_all(relay_changes(self._interface, link))
            self._relay.change(link)

    def run(self, *, control: bool) -> None:
        """Carries packets; returns when standard input ends, with `control`, else only by an
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

        if self._relay:
            with real_time():
                self._relay.run(descriptor, on_control)
            return
        while select.select([] if descriptor is None else [descriptor], [], []) and on_control():
            pass

    def stop(self) -> None:
        """Undoes everything."""
        if self._relay:
            self._relay.close()
        self._undo()

    def _start(self, link: HomeLink, seed: int) -> Mechanism:
        address, mtu = interface_facts(self._interface)
        if mtu > MTU_MAX:
            raise SettingsError(
                f"{self._interface}: expected an MTU of at most {MTU_MAX}, as home lines have, got {mtu}"
            )
        if has_netem(self._interface):
            run_all(netem_commands(self._interface, link))
            return "netem"
        try:
            self._relay = PacketDelay(self._interface, link, seed)
        except OSError as error:
            raise UnavailableError(
                f"cannot shape {self._interface}: this kernel has no netem, and a tap device cannot be had: "
                f"{error.strerror}; a container needs the device /dev/net/tun and the capability NET_ADMIN"
            ) from error
        if link.down:
            accept_other_interface(tap_name("down", self._interface))
        run_all(relay_commands(self._interface, link, address, mtu))
        return "tbf+relay"

    def _undo(self) -> None:
        for command in undo_commands(self._interface):
            with contextlib.suppress(UnavailableError):
                run(command)


class Lines:
    """Whole lines from a descriptor that is read piece by piece."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._rest = b""

    def read(self) -> list[bytes] | None:
        """The lines that came, perhaps none yet; None at the end."""
        if not (more := os.read(self._descriptor, 4096)):
            return None
        *lines, self._rest = (self._rest + more).split(b"\n")
        return lines


def interface_facts(interface: str) -> tuple[str, int]:
    """Hardware address and MTU of an interface; `SettingsError` names those that there are."""
    listed = json.loads(run(("ip", "-j", "link", "show")))
    for known in listed:
        if known["ifname"] == interface:
            return str(known["address"]), int(known["mtu"])
    names = ", ".join(sorted(known["ifname"] for known in listed))
    raise SettingsError(f"no network interface {interface!r} here; expected one of {names}")


def has_netem(interface: str) -> bool:
    """Whether the kernel can do it all by itself; tried, because nothing tells it otherwise."""
    try:
        run(words(f"tc qdisc add dev {interface} root netem delay 0ms"))
    except UnavailableError as error:
        if re.search("qdisc kind is unknown|No such file", str(error)):
            return False
        raise
    run(words(f"tc qdisc del dev {interface} root"))
    return True


def accept_other_interface(tap: str) -> None:
    """Lets packets come in by the tap whose answers leave by the shaped interface (reverse path
    filtering).

    The stricter of the settings of "all" and of the tap holds; the loose filter (2) wants any
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
            f"cannot shape: strict reverse path filtering cannot be changed here ({error.strerror}); start the "
            "container with the sysctls net.ipv4.conf.all.rp_filter=2 and net.ipv4.conf.default.rp_filter=2"
        ) from error
    if strictness:
        run(words(f"ip addr add {TAP_ADDRESS} dev {tap}"))


def run(command: Command) -> str:
    """Standard output of a command that must succeed; `UnavailableError` says how it did not."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UnavailableError(
            f"expected the command {command[0]!r} of the package iproute2, found none"
        ) from None
    if done.returncode:
        raise UnavailableError(
            f"{' '.join(command)}: {done.stderr.strip() or f'exit code {done.returncode}'}"
        )
    return done.stdout


def run_all(commands: Sequence[Command]) -> None:
    """Runs commands in order, up to the first that fails."""
    for command in commands:
        run(command)


def in_words(interface: str, link: HomeLink, mechanism: str) -> str:
    """What was done, in one line."""
    ways = ", ".join(
        f"{name} {_way_in_words(way)}"
        for name, way in (("up", link.up), ("down", link.down))
        if way
    )
    return f"{interface}: shaped by {mechanism}: {ways}"


def shape(interface: str, link: HomeLink, *, control: bool = False, seed: int = 0) -> None:
    """Shapes an interface until this process is told to leave."""
    with contextlib.suppress(KeyboardInterrupt), stopped_like_ctrl_c():
        shaping = Shaping(interface, link, seed)
        try:
            print(in_words(interface, link, shaping.mechanism), flush=True)
            shaping.run(control=control)
        finally:
            shaping.stop()


@contextlib.contextmanager
def stopped_like_ctrl_c() -> Iterator[None]:
    """A supervisor's signal, and a terminal that closes, end what runs within as Ctrl-C does: in
    order, and once.
    """

    def interrupt(number: int, _: object) -> None:
        for other in before:
            signal.signal(other, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _us(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"


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
