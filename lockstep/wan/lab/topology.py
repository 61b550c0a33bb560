"""The plan of a laboratory: its namespaces, their cables, and the commands that make them. Pure.

    node-0 [eth0 ========= to-node-0] internet [to-coordinator ---- eth0] coordinator
    node-1 [eth0 -- lan] node-1-nat [wan ===== to-node-1]

    ---- a cable    ==== a shaped link

Every home has a subnet of the internet: gateway .1, home .2, and .3 for a home that moves
(`Laboratory.move`). A home behind NAT has a router of its own and a private address, the same in
every such house, as in life. With several regions each has an internet namespace, and each pair of
them a link with a delay and no limit on its rate.

The public addresses are of 11.0.0.0/8; no packet leaves the machine. The software under test would
not take private addresses, such as those of 10.0.0.0/8, for reachable ones.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import combinations, islice
from typing import Literal

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.tc_commands import Command, words
from protocol.errors import SettingsError

PREFIX = "lockstep-"
"""Prefix of the name of every namespace of every laboratory."""

HOMES_MAX = 256
"""Limit on the homes of a laboratory: more processes than any machine runs at once."""

Nat = Literal["none", "masquerade"]

LAN_ADDRESS, LAN_GATEWAY = "192.168.1.2", "192.168.1.1"

_PUBLIC, _LINES = IPv4Network("11.0.0.0/16"), IPv4Network("11.255.0.0/16")
_HOME_BITS, _LINE_BITS = 29, 30
_NAME = re.compile(r"[a-z][a-z0-9-]{0,11}")


@dataclass(frozen=True, slots=True)
class LabHome:
    """One computer of the laboratory and its way to the internet."""

    name: str
    """Name, at most 12 of a-z, 0-9 and -, such as "node-0"."""

    link: HomeLink | None = None
    """Link that shapes the line; None: as fast as the machine."""

    nat: Nat = "none"
    """Router between home and internet: none, or "masquerade", which is port-restricted."""

    region: str = ""
    """Region in which the line ends; must be one of the plan's."""


@dataclass(frozen=True, slots=True)
class RegionDistance:
    """The distance between two regions."""

    here: str
    there: str
    one_way_s: float


@dataclass(frozen=True, slots=True)
class Placed:
    """A home with everything that follows from its place in the plan."""

    home: LabHome
    namespace: str
    """Namespace of the home's processes."""
    edge: str
    """Namespace of the interface that leads to the internet: the home's, or its router's."""
    edge_interface: str
    internet: str
    """Namespace at the other end of the line."""
    port: str
    """Interface at that end; it receives the traffic that goes up."""
    subnet: IPv4Network

    @property
    def gateway(self) -> str:
        """Address of the internet's end of the line."""
        return str(self.subnet[1])

    def public_address(self, *, moved: bool = False) -> str:
        """Address at which the internet sees the home."""
        return str(self.subnet[3 if moved else 2])

    @property
    def address(self) -> str:
        """Address of the home's own interface, eth0."""
        return LAN_ADDRESS if self.home.nat != "none" else self.public_address()


@dataclass(frozen=True, slots=True)
class Shaped:
    """An interface and the link that shapes it."""

    namespace: str
    interface: str
    link: HomeLink


@dataclass(frozen=True, slots=True)
class Plan:
    """A laboratory without its name."""

    homes: tuple[LabHome, ...]
    lines: tuple[RegionDistance, ...] = ()
    """One for each pair of the homes' regions."""

    def __post_init__(self) -> None:
        names = [home.name for home in self.homes]
        if not 1 <= len(names) <= HOMES_MAX:
            raise SettingsError(
                f"expected 1 to {HOMES_MAX} computers in the laboratory, got {len(names)}"
            )
        for name in names:
            if not _NAME.fullmatch(name) or name.startswith("internet") or name.endswith("-nat"):
                raise SettingsError(
                    f"name of a computer: expected at most 12 of a-z, 0-9 and -, got {name!r}"
                )
        if twice := {name for name in names if names.count(name) > 1}:
            raise SettingsError(
                f"two computers in the laboratory are called {', '.join(sorted(twice))}"
            )
        known = {frozenset((line.here, line.there)) for line in self.lines}
        for pair in combinations(self.regions, 2):
            if frozenset(pair) not in known:
                raise SettingsError(f"regions: no distance between {pair[0]} and {pair[1]}")

    @property
    def regions(self) -> tuple[str, ...]:
        """Regions in the order of their first homes."""
        return tuple(dict.fromkeys(home.region for home in self.homes))

    def placed(self, laboratory: str) -> dict[str, Placed]:
        """Every home of a laboratory with this name, by the home's name."""
        subnets = islice(_PUBLIC.subnets(new_prefix=_HOME_BITS), len(self.homes))
        return {
            home.name: _placed(home, laboratory, subnet)
            for home, subnet in zip(self.homes, subnets, strict=True)
        }

    def namespaces(self, laboratory: str) -> list[str]:
        """Names of all namespaces."""
        return [namespace for namespace, _ in self.forwarding(laboratory)]

    def forwarding(self, laboratory: str) -> list[tuple[str, bool]]:
        """All namespaces, each with whether it forwards packets."""
        placed = self.placed(laboratory).values()
        homes = [(place.namespace, False) for place in placed]
        routers = [(place.edge, True) for place in placed if place.edge != place.namespace]
        return [
            *((_internet(laboratory, region), True) for region in self.regions),
            *homes,
            *routers,
        ]

    def commands(self, laboratory: str) -> list[Command]:
        """Commands that connect the namespaces, which must exist and be empty."""
        return [words(line) for line in self._lines(laboratory)]

    def routers(self, laboratory: str) -> list[str]:
        """Namespaces that hide their interface "lan" behind their interface "wan"."""
        return [
            place.edge
            for place in self.placed(laboratory).values()
            if place.home.nat == "masquerade"
        ]

    def shaped(self, laboratory: str) -> list[Shaped]:
        """Every link: those of the homes in their order, then those between regions."""
        placed = self.placed(laboratory).values()
        homes = [
            Shaped(place.edge, place.edge_interface, place.home.link)
            for place in placed
            if place.home.link
        ]
        long = [
            Shaped(
                _internet(laboratory, here),
                f"r-{there}",
                HomeLink(up=LinkDirection(delay_s=line.one_way_s)),
            )
            for line in self._used()
            for here, there in ((line.here, line.there), (line.there, line.here))
        ]
        return homes + long

    def _used(self) -> list[RegionDistance]:
        return [line for line in self.lines if {line.here, line.there} <= set(self.regions)]

    def _lines(self, laboratory: str) -> Iterator[str]:
        for namespace in self.namespaces(laboratory):
            yield f"ip -n {namespace} link set lo up"
        for place in self.placed(laboratory).values():
            yield from _home_lines(place)
        for line, subnet in zip(self._used(), _LINES.subnets(new_prefix=_LINE_BITS), strict=False):
            yield from self._region_lines(laboratory, line, subnet)

    def _region_lines(
        self, laboratory: str, line: RegionDistance, subnet: IPv4Network
    ) -> Iterator[str]:
        ends = ((line.here, line.there, subnet[1]), (line.there, line.here, subnet[2]))
        here, there = _internet(laboratory, line.here), _internet(laboratory, line.there)
        veth = f"r-{line.there} type veth peer name r-{line.here}"
        yield f"ip -n {here} link add {veth} netns {there}"
        for own, other, address in ends:
            at = f"ip -n {_internet(laboratory, own)}"
            yield f"{at} addr add {address}/{_LINE_BITS} dev r-{other}"
            yield f"{at} link set r-{other} up"
        for own, other, gateway in (
            (line.here, line.there, subnet[2]),
            (line.there, line.here, subnet[1]),
        ):
            at = f"ip -n {_internet(laboratory, own)}"
            for place in self.placed(laboratory).values():
                if place.home.region == other:
                    yield f"{at} route add {place.subnet} via {gateway}"


def address_commands(place: Placed, *, moved: bool) -> list[Command]:
    """Commands that give a home its other public address; connections from the old one break."""
    old, new = place.public_address(moved=not moved), place.public_address(moved=moved)
    at = f"ip -n {place.edge}"
    return [
        words(f"{at} addr del {old}/{_HOME_BITS} dev {place.edge_interface}"),
        words(f"{at} addr add {new}/{_HOME_BITS} dev {place.edge_interface}"),
        words(f"{at} route replace default via {place.gateway}"),
    ]


def _internet(laboratory: str, region: str) -> str:
    return f"{PREFIX}{laboratory}-internet{'-' if region else ''}{region}"


def _placed(home: LabHome, laboratory: str, subnet: IPv4Network) -> Placed:
    namespace = f"{PREFIX}{laboratory}-{home.name}"
    edge, interface = (namespace, "eth0") if home.nat == "none" else (f"{namespace}-nat", "wan")
    return Placed(
        home,
        namespace,
        edge,
        interface,
        _internet(laboratory, home.region),
        f"to-{home.name}",
        subnet,
    )


def _home_lines(place: Placed) -> Iterator[str]:
    edge, interface = f"ip -n {place.edge}", place.edge_interface
    yield f"{edge} link add {interface} type veth peer name {place.port} netns {place.internet}"
    yield f"ip -n {place.internet} addr add {place.gateway}/{_HOME_BITS} dev {place.port}"
    yield f"ip -n {place.internet} link set {place.port} up"
    yield f"{edge} addr add {place.public_address()}/{_HOME_BITS} dev {interface}"
    yield f"{edge} link set {interface} up"
    yield f"{edge} route add default via {place.gateway}"
    if place.edge != place.namespace:
        home = f"ip -n {place.namespace}"
        yield f"{home} link add eth0 type veth peer name lan netns {place.edge}"
        yield f"{edge} addr add {LAN_GATEWAY}/24 dev lan"
        yield f"{edge} link set lan up"
        yield f"{home} addr add {LAN_ADDRESS}/24 dev eth0"
        yield f"{home} link set eth0 up"
        yield f"{home} route add default via {LAN_GATEWAY}"
