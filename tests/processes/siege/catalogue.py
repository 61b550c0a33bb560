"""The attacks by name: what every connection does, how many there are, and where they come from."""

from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv6Address, IPv6Network

from tests.processes.siege import attacks, libp2p
from tests.processes.siege.attacks import Work

PREFIX = IPv6Network("fd5e:1ab0::/32")
"""Networks of attackers with IPv6: a route leads them to this machine's loopback."""

HOSTS_OF_NETWORK = 250


def of_loopback(number: int) -> str:
    """An address of loopback, each of which is a network alone."""
    return f"127.{64 + number // HOSTS_OF_NETWORK}.{number % HOSTS_OF_NETWORK}.9"


def of_a_home(number: int) -> str:
    """An address in one of the /64 of one /48."""
    return str(IPv6Address(int(PREFIX.network_address) | 1 << 80 | number << 64 | 9))


def of_many_homes(number: int) -> str:
    """An address in a /48 of its own."""
    return str(IPv6Address(int(PREFIX.network_address) | number << 80 | 9))


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack."""

    words: str
    """What the attackers do, for a table."""
    work: Work
    """What one connection does, again and again."""
    connections: int = 64
    """At each port at once."""
    networks: int = 1
    source: Callable[[int], str] = of_loopback
    """The address of a network, by its number."""
    coordinator_only: bool = False
    """The other ports are left in peace: one process of attackers has no more descriptors."""

    @property
    def needs_route(self) -> bool:
        """Tells whether it comes from addresses that this machine does not have by itself."""
        return self.source is not of_loopback


FROM_ONE_HOST: dict[str, Attack] = {
    "idle": Attack("connections that say nothing", attacks.idle),
    "half-handshakes": Attack("a TLS hello, and nothing", attacks.half_handshake),
    "slow-handshakes": Attack("a TLS hello, a byte a second", attacks.slow_handshake),
    "handshakes": Attack("TLS handshakes without end", attacks.handshakes),
    "garbage": Attack("HTTP/1, broken frames, noise", attacks.garbage),
    "preface": Attack("the opening of HTTP/2, and nothing", attacks.preface),
    "header-blocks": Attack("headers that a table makes long", attacks.header_blocks),
    "half-messages": Attack("4 MiB without their last byte, every call", attacks.half_messages),
    "half-calls": Attack("calls without their message", attacks.half_calls),
    "silent-sessions": Attack("32 sessions each that say nothing", attacks.silent_sessions),
    "rapid-reset": Attack("calls that are reset at once", attacks.rapid_reset),
    "continuations": Attack("a header block that never ends", attacks.continuations),
    "settings": Attack("SETTINGS without end", attacks.settings),
    "tables": Attack("SETTINGS that resize the table", attacks.tables),
    "pings": Attack("PING without end", attacks.pings),
    "window-updates": Attack("WINDOW_UPDATE without end", attacks.window_updates),
    "empty-data": Attack("DATA without a byte, without end", attacks.empty_data),
    "large-metadata": Attack("headers of 16 kB", attacks.large_metadata),
}
"""64 connections of one host to each port."""

CROWDS: dict[str, Attack] = {
    "idle-1100": Attack("connections that say nothing", attacks.idle, 1100),
    "preface-1100": Attack("the opening of HTTP/2, and nothing", attacks.preface, 1100),
    "idle-17000": Attack(
        "connections that say nothing", attacks.idle, 17_000, coordinator_only=True
    ),
    "header-blocks-256": Attack("headers that a table makes long", attacks.header_blocks, 256),
    "half-messages-256": Attack("4 MiB without their last byte", attacks.half_messages, 256),
    "rapid-reset-256": Attack("calls that are reset at once", attacks.rapid_reset, 256),
    "handshakes-256": Attack("TLS handshakes without end", attacks.handshakes, 256),
    "silent-sessions-16": Attack(
        "32 sessions each that say nothing", attacks.silent_sessions, 64, 16
    ),
    "header-blocks-256-networks": Attack(
        "headers that a table makes long", attacks.header_blocks, 256, 256
    ),
    "idle-1000-networks": Attack("connections that say nothing", attacks.idle, 1000, 1000),
    "preface-1000-networks": Attack(
        "the opening of HTTP/2, and nothing", attacks.preface, 1000, 1000
    ),
    "half-calls-1000-networks": Attack(
        "calls without their message", attacks.half_calls, 1000, 1000
    ),
    "idle-home": Attack("connections that say nothing", attacks.idle, 1000, 1000, of_a_home),
    "half-calls-homes": Attack(
        "calls without their message", attacks.half_calls, 256, 256, of_many_homes
    ),
    "idle-homes": Attack("connections that say nothing", attacks.idle, 1000, 1000, of_many_homes),
}
"""More connections, or more networks."""

AT_THE_DAEMON: dict[str, Attack] = {
    "libp2p-idle-1100": Attack("connections that say nothing", attacks.idle, 1100),
    "libp2p-idle-3000": Attack("connections that say nothing", attacks.idle, 3000),
    "libp2p-idle-1000-networks": Attack("connections that say nothing", attacks.idle, 1000, 1000),
    "libp2p-half-greetings": Attack("half a word of multistream", libp2p.half_greeting, 1100),
    "libp2p-half-noise": Attack("half a handshake of Noise", libp2p.half_noise, 1100),
    "libp2p-noise": Attack("bytes without a meaning", libp2p.noise),
    "libp2p-keys": Attack("a whole handshake, and nothing", libp2p.keys, 600),
    "libp2p-keys-250-networks": Attack("a whole handshake, and nothing", libp2p.keys, 600, 250),
    "libp2p-unknown-streams": Attack("streams of no protocol", libp2p.unknown_streams, 16),
    "libp2p-silent-streams": Attack("streams that say nothing", libp2p.silent_streams, 16),
    "libp2p-pipes": Attack("links that say nothing", libp2p.pipes, 16),
    "libp2p-unread-pings": Attack("pings whose answers nobody reads", libp2p.unread_pings, 16),
}
"""At libp2p's daemon."""

ATTACKS = FROM_ONE_HOST | CROWDS
"""At all ports behind a gate."""

ALL = ATTACKS | AT_THE_DAEMON
