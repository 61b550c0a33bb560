"""Command lines of `ip` and `tc` that shape an interface, as values. Pure."""

from typing import TypeAlias

from lockstep.wan.lab.home_link import HomeLink, LinkDirection

Command: TypeAlias = tuple[str, ...]
"""Words of one `ip` or `tc` command."""

_ALL_IPV4 = "protocol ip prio 1 u32 match u32 0 0 flowid :1 action mirred egress redirect dev"


def words(text: str) -> Command:
    """The command that a line spells."""
    return tuple(text.split())


def netem(way: LinkDirection) -> str:
    """Arguments of netem for one direction."""
    parts = [f"netem limit {way.held_frames} delay {_us(way.delay_s)} {_us(way.jitter_s)}"]
    parts += [f"loss {100 * way.loss:g}%"] if way.loss else []
    # With a rate netem sends its queue in order, so jitter reorders nothing.
    parts += [f"rate {way.rate_bit_s}bit"] if way.rate_bit_s else []
    return " ".join(parts)


def tbf(way: LinkDirection) -> str:
    """Arguments of the token bucket for one direction; a plain queue where no rate is asked."""
    if not way.rate_bit_s:
        return f"pfifo limit {way.held_frames}"
    return f"tbf rate {way.rate_bit_s}bit burst {way.burst_bytes} limit {way.queue_bytes}"


def netem_commands(interface: str, link: HomeLink, verb: str = "add") -> list[Command]:
    """Shapes an interface by netem; the verb "change" is for one that is already shaped."""
    up, down, ifb = link.up, link.down, tap_name("down", interface)
    lines = []
    if up:
        # netem would lose, and count, a packet of many segments as one.
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


def delay_commands(interface: str, link: HomeLink, address: str, mtu: int) -> list[Command]:
    """Leads an interface's packets through the taps of a `PacketDelay`, which must be open.

    `address` is the interface's own MAC.
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


def delay_changes(interface: str, link: HomeLink) -> list[Command]:
    """Changes the rates of an interface that is already shaped."""
    ways = (("up", link.up), ("down", link.down))
    return [
        words(f"tc qdisc replace dev {tap_name(name, interface)} root {tbf(way)}")
        for name, way in ways
        if way
    ]


def undo_commands(interface: str) -> list[Command]:
    """Removes the leftovers of either mechanism; each command may fail where there is nothing.
    Taps end with their process.
    """
    return [
        words(f"tc qdisc del dev {interface} clsact"),
        words(f"tc qdisc del dev {interface} root"),
        words(f"ip link del {tap_name('down', interface)}"),
    ]


def tap_name(way: str, interface: str) -> str:
    """Name of the device that takes one direction ("up", "down") of an interface: at most the
    kernel's 15 characters.
    """
    return f"{way}-{interface}"[:15]


def _us(seconds: float) -> str:
    return f"{round(seconds * 1e6)}us"
