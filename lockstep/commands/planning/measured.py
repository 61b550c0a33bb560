"""The members of a running coordinator, as its status measures them, for `lockstep plan --measure`.

compute   from `samples_per_second`: the fastest member sets the pass, the others are slower
up        `up_bit_per_second`: the rate at which a member's payloads reached others; its line may
          be faster, as round trips are in it
down      not measured: the largest rate up of any member, so that it does not count
delays    not measured apart: the rates have them
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.commands.planning.matrix import NODES_MAX
from protocol.border.text import clean
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.planner.links import Line, Network

RATE_MAX = 1e15
"""Largest rate that is believed, in bits or samples a second."""


@dataclass(frozen=True, slots=True)
class Measured:
    """Members with measured figures."""

    network: Network
    samples_per_second: tuple[float, ...]
    """In the order of the network's lines."""
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


def measured(status: Mapping[str, Any]) -> Measured:
    """The members in a status document. `SettingsError` where too little was measured yet,
    `RemoteProtocolError` for a document of another form.
    """
    known: list[tuple[str, float, float]] = []
    left_out = []
    for member in _members(status):
        name = clean(str(member.get("name") or member.get("peer_id", "")[:8]))
        speed, up_bit_s = (
            _rate(member, field) for field in ("samples_per_second", "up_bit_per_second")
        )
        if speed and up_bit_s:
            known.append((name, speed, up_bit_s))
        else:
            left_out.append(name)
    if not known:
        raise SettingsError(
            "--measure: expected members whose speed and rate are known, found none: wait for the "
            "first committed rounds"
        )
    if len(known) > NODES_MAX:
        raise SettingsError(f"--measure: expected at most {NODES_MAX} members, got {len(known)}")
    down_bit_s = max(up_bit_s for _, _, up_bit_s in known)
    lines = [Line(name, up_bit_s, down_bit_s) for name, _, up_bit_s in known]
    return Measured(Network(lines), tuple(speed for _, speed, _ in known), tuple(left_out))


def _members(status: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    members = status.get("members")
    if not isinstance(members, list) or not all(isinstance(each, dict) for each in members):
        raise RemoteProtocolError("expected a list of members in the status, got none")
    return members


def _rate(member: Mapping[str, Any], field: str) -> float:
    value: Any = member.get(field)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not 0 <= value < RATE_MAX:
        raise RemoteProtocolError(
            f"expected {field} of a member from 0 to {RATE_MAX:g}, got {str(value)[:40]!r}"
        )
    return float(value)
