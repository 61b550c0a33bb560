"""Faults on a schedule: which computer, when, and for how long. Pure.

cut:node-2@10s+5s           the line of node-2 is unplugged 10 s after the first round opened,
                            for 5 s
cut-up:node-2@r4+5s         everything that node-2 sends is lost, from the opening of round 4
cut-down:node-2@r4+5s       everything that is sent to node-2 is lost
slow:node-1/10@10s+20s      the line has a tenth of its rates
kill:coordinator@r8         SIGKILL; the laboratory restarts the process
cut:relay@10s+5s            coordinator and relay can be cut and killed, not slowed
random:3                    three faults, drawn from the seed
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from lockstep.cluster.names import COORDINATOR, RELAY, node_name
from protocol.errors import SettingsError

RANDOM_MAX = 100
"""Random faults at most: more than any run of the laboratory has rounds."""

RANDOM_FROM, RANDOM_TO = 0.1, 0.7
"""Shares of the rounds between which random faults begin: first the run must have begun, and in the
end it needs time to heal."""

RANDOM_DURATIONS_S = (3, 5, 8)
"""Durations that random faults are drawn from."""

_LINE_KINDS = ("cut", "cut-up", "cut-down", "slow")
_FAULT = re.compile(
    r"(?P<kind>[a-z-]+):(?P<target>[a-z][a-z0-9-]*)(/(?P<divisor>\d+(\.\d+)?))?"
    r"@((?P<at_s>\d+(\.\d+)?)s|r(?P<round>\d+))(\+(?P<for_s>\d+(\.\d+)?)s)?"
)
_FORM = (
    "KIND:COMPUTER@WHEN[+DURATION], such as cut:node-2@10s+5s, slow:node-1/10@r4+20s, "
    "kill:node-0@r8, or random:N"
)

_Item = TypeVar("_Item")


class Draws(Protocol):
    """Random draws, as `random.Random` makes them from a seed."""

    def choice(self, seq: Sequence[_Item], /) -> _Item:
        """One item."""

    def randint(self, a: int, b: int, /) -> int:
        """An integer from `a` to `b`, both included."""


@dataclass(frozen=True, slots=True)
class LineFault:
    """One thing that breaks."""

    kind: str
    """"cut", "cut-up", "cut-down", "slow" or "kill"."""
    target: str
    """Name of a computer."""
    at_s: float | None = None
    """Seconds after the first round opened; None: see `round`."""
    round: int | None = None
    """Round at whose opening the fault happens."""
    for_s: float = 0.0
    """Duration of a fault of a line; 0 for a kill."""
    divisor: float = 1.0
    """Divisor of the rates of a slowed line."""

    def __str__(self) -> str:
        slower = f"/{self.divisor:g}" if self.kind == "slow" else ""
        lasting = f"+{self.for_s:g}s" if self.for_s else ""
        when = f"r{self.round}" if self.at_s is None else f"{self.at_s:g}s"
        return f"{self.kind}:{self.target}{slower}@{when}{lasting}"


@dataclass(frozen=True, slots=True)
class Break:
    """The fault begins now."""

    fault: LineFault


@dataclass(frozen=True, slots=True)
class Mend:
    """The fault ends now: the line is as planned again."""

    fault: LineFault


class Schedule:
    """Faults that have not begun, and lines that are not mended yet."""

    def __init__(self, faults: Sequence[LineFault]) -> None:
        self._waiting = list(faults)
        self._broken: list[tuple[float, LineFault]] = []

    @property
    def done(self) -> bool:
        """Every fault has happened and every line is mended."""
        return not self._waiting and not self._broken

    def take_due(self, now_s: float, round: int) -> list[Break | Mend]:
        """Takes due changes off the schedule: each begin and each end is returned once.

        now_s: seconds since the first round opened; round: the newest round.
        """
        mends = [fault for until_s, fault in self._broken if until_s <= now_s]
        self._broken = [(until_s, fault) for until_s, fault in self._broken if until_s > now_s]
        breaks = [fault for fault in self._waiting if _is_due(fault, now_s, round)]
        self._waiting = [fault for fault in self._waiting if fault not in breaks]
        self._broken += [(now_s + fault.for_s, fault) for fault in breaks if fault.for_s]
        return [*map(Mend, mends), *map(Break, breaks)]


def parse_faults(
    texts: Sequence[str], nodes: int, rounds: int, draws: Draws, *, relay: bool = False
) -> tuple[LineFault, ...]:
    """The faults that a person asked for, in a laboratory with `nodes` nodes and perhaps a relay.

    Raises `SettingsError` with the text that is wrong and the reason.
    """
    faults: list[LineFault] = []
    for text in texts:
        kind, _, count = text.partition(":")
        faults += (
            _random_faults(count, nodes, rounds, draws)
            if kind == "random"
            else [_parse(text, nodes, relay)]
        )
    return tuple(faults)


def _parse(text: str, nodes: int, relay: bool) -> LineFault:
    if not (found := _FAULT.fullmatch(text)):
        raise SettingsError(f"fault: expected {_FORM}, found {text!r}")
    kind, target, lasts = found["kind"], found["target"], found["for_s"]
    computers, public = (
        [node_name(number) for number in range(nodes)],
        (COORDINATOR, RELAY)[: 1 + relay],
    )
    if kind not in (*_LINE_KINDS, "kill"):
        raise SettingsError(
            f"fault {text!r}: expected one of {', '.join(_LINE_KINDS)}, kill, found {kind!r}"
        )
    if target == RELAY and not relay:
        raise SettingsError(
            f"fault {text!r}: expected a laboratory with a relay (--relay), found one without"
        )
    if target not in computers and not (target in public and kind in ("kill", "cut")):
        raise SettingsError(
            f"fault {text!r}: expected node-0 to {computers[-1]}, or the {' or '.join(public)} "
            f"to cut or kill, found {target!r}"
        )
    if (kind == "kill") == bool(lasts):
        raise SettingsError(
            f"fault {text!r}: expected {'no duration' if lasts else 'a duration, such as +5s'}"
        )
    if (kind == "slow") != bool(found["divisor"]) or (
        kind == "slow" and float(found["divisor"]) < 1
    ):
        raise SettingsError(
            f"fault {text!r}: expected a divisor of at least 1 after the name for slow, such as "
            "slow:node-1/10, and none for other kinds"
        )
    return LineFault(
        kind,
        target,
        float(found["at_s"]) if found["at_s"] else None,
        int(found["round"]) if found["round"] else None,
        float(lasts or 0),
        float(found["divisor"] or 1),
    )


def _random_faults(count: str, nodes: int, rounds: int, draws: Draws) -> list[LineFault]:
    if not count.isdecimal() or not 1 <= int(count) <= RANDOM_MAX:
        raise SettingsError(
            f"fault: expected random:1 to random:{RANDOM_MAX}, found {f'random:{count}'!r}"
        )
    first, last = int(RANDOM_FROM * rounds), max(1, int(RANDOM_TO * rounds))
    return [_drawn(draws, draws.randint(first, last), nodes) for _ in range(int(count))]


def _drawn(draws: Draws, round: int, nodes: int) -> LineFault:
    kind = draws.choice((*_LINE_KINDS, "kill"))
    target = node_name(draws.randint(0, nodes - 1))
    if kind == "kill":
        return LineFault(kind, draws.choice((target, COORDINATOR)), round=round)
    duration_s = draws.choice(RANDOM_DURATIONS_S)
    return LineFault(
        kind, target, round=round, for_s=duration_s, divisor=10 if kind == "slow" else 1
    )


def _is_due(fault: LineFault, now_s: float, round: int) -> bool:
    return now_s >= fault.at_s if fault.at_s is not None else round >= (fault.round or 0)
