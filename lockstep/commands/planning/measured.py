"""The members of a running coordinator, as its status measures them, for `lockstep plan --measure`.

compute   from `samples_per_second`: the fastest member sets the pass, the others are slower
up        `up_bit_per_second`: the rate at which a member's payloads reached others, or that of its
          fastest link, if larger
down      not measured: the largest rate up of any member, so that it does not count
links     `links`: round trips between two members, the median of several heartbeats on the link
          that carries their payloads, and rates of transfers on it; `protocol.mixing.
          measured_links` fills what was not measured. A coordinator that names none: no delays
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.border.text import clean
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import PeerId
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX, MeasuredLink
from protocol.mixing.measured_links import LinkMatrix, matrix_of, network_of
from protocol.planner.links import Network

NODES_MAX = 256
"""Nodes that are planned for at most: waiting is drawn for each of them."""

RATE_MAX = 1e15
"""Largest rate that is believed, in bits or samples a second."""


@dataclass(frozen=True, slots=True)
class MeasuredMembers:
    """Members with measured figures."""

    network: Network
    samples_per_second: tuple[float, ...]
    """In the order of the network's lines."""
    links: LinkMatrix
    """What was measured between them, in the same order."""
    left_out: tuple[str, ...]
    """Names of members of which too little is known."""

    @property
    def slower(self) -> tuple[float, ...]:
        """Factors by which the members are slower than the fastest."""
        fastest = max(self.samples_per_second)
        return tuple(fastest / speed for speed in self.samples_per_second)

    def pass_s(self, samples: int) -> float:
        """Seconds in which the fastest member trains this number of samples."""
        return samples / max(self.samples_per_second)


def measured(status: Mapping[str, Any]) -> MeasuredMembers:
    """The members in a status document. `SettingsError` where too little was measured yet,
    `RemoteProtocolError` for a document of another form.
    """
    known: list[tuple[PeerId, str, float, float]] = []
    left_out = []
    for member in _members(status):
        name = clean(str(member.get("name") or member.get("peer_id", "")[:8]))
        speed, up_bit_s = (
            _rate(member, field) for field in ("samples_per_second", "up_bit_per_second")
        )
        if speed and up_bit_s:
            known.append((PeerId(str(member.get("peer_id"))), name, speed, up_bit_s))
        else:
            left_out.append(name)
    if not known:
        raise SettingsError(
            "--measure: expected members whose speed and rate are known, found none: wait for the "
            "first committed rounds"
        )
    if len(known) > NODES_MAX:
        raise SettingsError(f"--measure: expected at most {NODES_MAX} members, got {len(known)}")
    links = matrix_of(_links(status), [peer for peer, _, _, _ in known])
    rates = [up_bit_s for _, _, _, up_bit_s in known]
    network = network_of([name for _, name, _, _ in known], rates, links)
    return MeasuredMembers(
        network, tuple(speed for _, _, speed, _ in known), links, tuple(left_out)
    )


def _members(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    members = status.get("members")
    if not isinstance(members, list) or not all(isinstance(each, dict) for each in members):
        raise RemoteProtocolError("expected a list of members in the status, got none")
    return members


def _links(status: Mapping[str, Any]) -> Mapping[PeerId, Sequence[MeasuredLink]]:
    """What each member measured of its links, as the matrices of the status have it."""
    found = status.get("links")
    if found is None:
        return {}
    if not isinstance(found, dict) or not isinstance(peers := found.get("peers"), list):
        raise RemoteProtocolError("expected the members of measured links in the status, got none")
    count = len(peers)
    if count > LINKS_MAX:
        raise RemoteProtocolError(
            f"expected measured links of at most {LINKS_MAX} members in the status, got {count}"
        )
    round_trips_ms = _matrix(found, "round_trip_ms", count, ROUND_TRIP_MS_MAX)
    rates = _matrix(found, "bit_per_second", count, BIT_S_MAX)
    said: dict[PeerId, list[MeasuredLink]] = defaultdict(list)
    for row, sender in enumerate(peers):
        for column, receiver in enumerate(peers):
            if row != column and (took_ms := round_trips_ms[row][column]) is not None:
                link = MeasuredLink(PeerId(str(sender)), took_ms, rates[row][column] or 0)
                said[PeerId(str(receiver))].append(link)
    return said


def _matrix(found: Mapping[str, Any], field: str, count: int, most: int) -> list[list[int | None]]:
    rows: Any = found.get(field)
    listed = isinstance(rows, list) and all(isinstance(row, list) for row in rows)
    square = listed and [len(row) for row in rows] == [count] * count
    if not square or not all(_fits(value, most) for row in rows for value in row):
        raise RemoteProtocolError(
            f"expected {field} of links as {count} rows of {count} whole numbers from 0 to {most}, "
            f"or null, got {str(rows)[:40]!r}"
        )
    return [list(row) for row in rows]


def _fits(value: object, most: int) -> bool:
    return value is None or (type(value) is int and 0 <= value <= most)


def _rate(member: Mapping[str, Any], field: str) -> float:
    value: Any = member.get(field)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < RATE_MAX:
        raise RemoteProtocolError(
            f"expected {field} of a member from 0 to {RATE_MAX:g}, got {str(value)[:40]!r}"
        )
    return float(value)
