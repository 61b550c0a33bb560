"""Whether the links are what was asked for: no figure of a laboratory is worth more than its
links.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.probe import Measured
from protocol.errors import UnavailableError

TOLERANCE = 0.15
"""Of rates and round trips, of what was asked."""

ATTEMPTS = 3
"""To find a link as it was asked for."""

LOSS_DEVIATIONS = 4
"""Of a share of so many packets, drawn by chance: once in sixteen thousand links it is further
off."""


@dataclass(frozen=True, slots=True)
class MeasuredLink:
    """One home's line, asked against measured: bits per second of whole frames, seconds, shares of
    packets.
    """

    home: str
    profile: str
    region: str
    nat: str
    mechanism: str
    asked_up: float
    measured_up: float
    asked_down: float
    measured_down: float
    asked_rtt: float
    measured_rtt: float
    asked_loss: float
    """Of either way."""
    measured_loss: float
    """Mean of both ways."""
    packets: int
    """Small packets sent each way to find round trip and loss."""

    def deviations(self) -> list[str]:
        """What is further off than may be, in words."""
        pairs = {
            "up, bit/s": (self.asked_up, self.measured_up),
            "down, bit/s": (self.asked_down, self.measured_down),
            "round trip, s": (self.asked_rtt, self.measured_rtt),
        }
        wrong = [
            f"{self.home}: {name}: asked {asked:g}, measured {measured:.4g}"
            for name, (asked, measured) in pairs.items()
            if abs(measured - asked) > TOLERANCE * asked
        ]
        samples = 2 * self.packets
        chance = (
            LOSS_DEVIATIONS * math.sqrt(self.asked_loss * (1 - self.asked_loss) / samples)
            + 2 / samples
        )
        if abs(self.measured_loss - self.asked_loss) > TOLERANCE * self.asked_loss + chance:
            wrong.append(
                f"{self.home}: loss: asked {self.asked_loss:.2%}, measured {self.measured_loss:.2%}"
            )
        return wrong

    def document(self) -> dict[str, Any]:
        """JSON-able."""
        return asdict(self)


def compared(laboratory: Laboratory, home: str, profile: str, found: Measured) -> MeasuredLink:
    """What was found of a home's shaped line, beside what was asked for."""
    place = laboratory.places[home]
    link = place.home.link or HomeLink()
    up, down = link.up or LinkDirection(), link.down or LinkDirection()
    return MeasuredLink(
        home=home,
        profile=profile,
        region=place.home.region,
        nat=place.home.nat,
        mechanism=laboratory.mechanism,
        asked_up=up.rate_bit_s,
        measured_up=found.up_bit_s,
        asked_down=down.rate_bit_s,
        measured_down=found.down_bit_s,
        asked_rtt=link.rtt_s,
        measured_rtt=found.rtt_s,
        asked_loss=(up.loss + down.loss) / 2,
        measured_loss=(found.loss_up + found.loss_down) / 2,
        packets=found.packets,
    )


def measure_all(
    laboratory: Laboratory, profiles: dict[str, str], advance: Callable[[float, float | None], None]
) -> list[MeasuredLink]:
    """Measures the line of every home of `profiles` (home: profile), one after the other, nothing
    else running.

    One that is off is measured again: a busy moment of the machine passes, a wrong link stays
    wrong.
    """
    links: list[MeasuredLink] = []
    for home, profile in profiles.items():
        advance(len(links), len(profiles))
        for _ in range(ATTEMPTS):
            link = compared(laboratory, home, profile, laboratory.measure(home))
            if not link.deviations():
                break
        links.append(link)
    advance(len(profiles), len(profiles))
    return links


def require_as_asked(links: Sequence[MeasuredLink]) -> None:
    """`UnavailableError` with every figure that is off by more than it may be."""
    if wrong := [figure for link in links for figure in link.deviations()]:
        raise UnavailableError(
            f"links are off by more than {TOLERANCE:.0%} of what was asked: {'; '.join(wrong)}; a busy machine cannot "
            "keep their time: run fewer or slower links, or nothing else beside"
        )
