"""Compares each link as measured with the link as asked for.

No figure of a laboratory is worth more than its links.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.probe import ProbedLine
from protocol.errors import UnavailableError

TOLERANCE = 0.15
"""Largest deviation of rates and round trips, as a share of the asked figure."""

ATTEMPTS = 3
"""Number of measurements of a link before its deviation counts."""

LOSS_DEVIATIONS = 4
"""Standard deviations by which the share of lost packets may differ from the asked one; chance
alone exceeds them once in sixteen thousand links."""


@dataclass(frozen=True, slots=True)
class CheckedLink:
    """One home's line as asked and as measured.

    Units: bits per second of whole frames, seconds, shares of packets.
    """

    home: str
    profile: str
    region: str
    nat: str
    mechanism: str
    asked_up_bit_s: float
    measured_up_bit_s: float
    asked_down_bit_s: float
    measured_down_bit_s: float
    asked_rtt_s: float
    measured_rtt_s: float
    asked_loss: float
    """Share of the packets lost in each direction."""
    measured_loss: float
    """Mean of both directions."""
    packets: int
    """Number of small packets sent in each direction for round trip and loss."""

    def deviations(self) -> list[str]:
        """Every figure that deviates too far, in words."""
        pairs = {
            "up, bit/s": (self.asked_up_bit_s, self.measured_up_bit_s),
            "down, bit/s": (self.asked_down_bit_s, self.measured_down_bit_s),
            "round trip, s": (self.asked_rtt_s, self.measured_rtt_s),
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


def compared(laboratory: Laboratory, home: str, profile: str, found: ProbedLine) -> CheckedLink:
    """The measurement of a home's shaped line, beside the asked figures."""
    place = laboratory.places[home]
    link = place.home.link or HomeLink()
    up, down = link.up or LinkDirection(), link.down or LinkDirection()
    return CheckedLink(
        home=home,
        profile=profile,
        region=place.home.region,
        nat=place.home.nat,
        mechanism=laboratory.mechanism,
        asked_up_bit_s=up.rate_bit_s,
        measured_up_bit_s=found.up_bit_s,
        asked_down_bit_s=down.rate_bit_s,
        measured_down_bit_s=found.down_bit_s,
        asked_rtt_s=link.rtt_s,
        measured_rtt_s=found.rtt_s,
        asked_loss=(up.loss + down.loss) / 2,
        measured_loss=(found.loss_up + found.loss_down) / 2,
        packets=found.packets,
    )


def measure_all(
    laboratory: Laboratory, profiles: dict[str, str], advance: Callable[[float, float | None], None]
) -> list[CheckedLink]:
    """Measures the line of every home of `profiles` (profile by home), one after the other, while
    nothing else runs.

    A line that deviates is measured again: a busy moment of the machine passes, a wrong link stays
    wrong.
    """
    links: list[CheckedLink] = []
    for home, profile in profiles.items():
        advance(len(links), len(profiles))
        for _ in range(ATTEMPTS):
            link = compared(laboratory, home, profile, laboratory.measure(home))
            if not link.deviations():
                break
        links.append(link)
    advance(len(profiles), len(profiles))
    return links


def require_as_asked(links: Sequence[CheckedLink]) -> None:
    """Raises `UnavailableError` with every figure that deviates too far."""
    if wrong := [figure for link in links for figure in link.deviations()]:
        raise UnavailableError(
            f"links deviate by more than {TOLERANCE:.0%} from the asked: {'; '.join(wrong)}; "
            "a busy machine cannot keep their time: run fewer or slower links, or stop other work"
        )
