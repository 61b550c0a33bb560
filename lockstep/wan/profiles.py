"""Home links by name and distances between regions, read from one file.

The figures are those of real lines (`profiles.toml` names the sources); with --profiles-file the
commands read another file of the same form.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockstep.toml_file import read_toml
from lockstep.wan.lab.home_link import WANDER_S, HomeLink, LinkDirection
from protocol.errors import SettingsError
from protocol.validation import problems_text

BUILTIN = Path(__file__).with_name("profiles.toml")

RegionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,11}$")]
"""Name of a region; short, because it is part of the names of network interfaces."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Profile(_Table):
    """One kind of home link."""

    down_mbit_s: float = Field(gt=0, le=100_000)
    """Rate to the home, in megabits per second."""

    up_mbit_s: float = Field(gt=0, le=100_000)
    """Rate from the home, in megabits per second."""

    rtt_ms: float = Field(ge=0, le=10_000)
    """Round trip to the near end of the internet; each direction takes half of it."""

    jitter_ms: float = Field(ge=0, lt=WANDER_S * 1000)
    """Greatest deviation of the round trip; each direction has half of it."""

    loss_percent: float = Field(ge=0, le=50)
    """Share of the packets that each direction loses."""

    source: str = ""
    """Source of the figures."""

    def link(self) -> HomeLink:
        """The link as the home's interface sees it."""
        return HomeLink(self._way(self.up_mbit_s), self._way(self.down_mbit_s))

    def _way(self, mbit_s: float) -> LinkDirection:
        half_s = 1 / 2000  # half a round trip of milliseconds, in seconds
        jitter_ms = min(self.jitter_ms, self.rtt_ms)  # a packet cannot arrive before it left
        return LinkDirection(
            round(mbit_s * 1e6), self.rtt_ms * half_s, jitter_ms * half_s, self.loss_percent / 100
        )


class Distance(_Table):
    """Two regions of the internet."""

    between: tuple[RegionName, RegionName]
    """Names of the regions, in any order."""

    one_way_ms: float = Field(gt=0, le=10_000)
    """Travel time of a packet."""


class Catalogue(_Table):
    """Content of the file."""

    profiles: dict[str, Profile]
    """Profiles by name."""

    distances: tuple[Distance, ...] = ()
    """Distances of the known pairs."""

    def profile(self, name: str) -> Profile:
        """The profile of that name; `SettingsError` lists the known ones."""
        if name not in self.profiles:
            raise SettingsError(
                f"profile: expected one of {', '.join(self.profiles)}, found {name!r}"
            )
        return self.profiles[name]

    def require_region(self, name: str) -> None:
        """Raises `SettingsError`, which lists the known ones, for a region that there is not."""
        known = sorted({each for distance in self.distances for each in distance.between})
        if name not in known:
            raise SettingsError(f"regions: expected one of {', '.join(known)}, found {name!r}")

    def one_way_s(self, here: str, there: str) -> float:
        """Distance of two regions; `SettingsError` lists the known pairs."""
        for distance in self.distances:
            if set(distance.between) == {here, there}:
                return distance.one_way_ms / 1000
        known = ", ".join("-".join(distance.between) for distance in self.distances)
        raise SettingsError(
            f"regions: no distance between {here} and {there} is known, only of {known}"
        )


def read_profiles(path: Path = BUILTIN) -> Catalogue:
    """The catalogue in a file; `SettingsError` names every wrong field."""
    values = read_toml(path, "link profiles", "name others with --profiles-file")
    try:
        return Catalogue.model_validate(values)
    except ValidationError as error:
        raise SettingsError(f"{path}: {problems_text(error)}") from None


def cycled(names: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` names; the list begins again where it ends."""
    return tuple(names[number % len(names)] for number in range(count))
