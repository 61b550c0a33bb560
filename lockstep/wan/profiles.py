"""Home links by name and distances between regions, read from the one file that holds them.

The figures are those of people's lines (`profiles.toml` says from where); with --profiles-file the
commands read another file of the same form."""

import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from lockstep.wan.lab.home_link import WANDER_S, HomeLink, LinkDirection
from protocol.errors import SettingsError
from protocol.validation import problems_text

BUILTIN = Path(__file__).with_name("profiles.toml")

RegionName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9]{0,11}$")]
"""Short, because network interfaces carry it in their names."""


class _Table(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Profile(_Table):
    """One kind of home link."""

    down_mbit_s: float = Field(gt=0, le=100_000)
    """Rate to the home, in megabits per second."""

    up_mbit_s: float = Field(gt=0, le=100_000)
    """Rate from the home."""

    rtt_ms: float = Field(ge=0, le=10_000)
    """Round trip to the near end of the internet, half of it each way."""

    jitter_ms: float = Field(ge=0, lt=WANDER_S * 1000)
    """Greatest deviation of the round trip, half of it each way."""

    loss_percent: float = Field(ge=0, le=50)
    """Of the packets of either way."""

    source: str = ""
    """Where the figures come from."""

    def link(self) -> HomeLink:
        """What to ask of an interface in the home."""
        return HomeLink(self._way(self.up_mbit_s), self._way(self.down_mbit_s))

    def _way(self, mbit_s: float) -> LinkDirection:
        half_s = 1 / 2000  # of a millisecond, there and back
        jitter_ms = min(self.jitter_ms, self.rtt_ms)  # a packet cannot arrive before it left
        return LinkDirection(
            round(mbit_s * 1e6), self.rtt_ms * half_s, jitter_ms * half_s, self.loss_percent / 100
        )


class Distance(_Table):
    """Two regions of the internet."""

    between: tuple[RegionName, RegionName]
    """Their names, in any order."""

    one_way_ms: float = Field(gt=0, le=10_000)
    """Travel time of a packet."""


class Catalogue(_Table):
    """Everything in the file."""

    profiles: dict[str, Profile]
    """By name."""

    distances: tuple[Distance, ...] = ()
    """Of the pairs that are known."""

    def profile(self, name: str) -> Profile:
        """A profile by name; `SettingsError` lists those that there are."""
        if name not in self.profiles:
            raise SettingsError(
                f"profile: expected one of {', '.join(self.profiles)}, found {name!r}"
            )
        return self.profiles[name]

    def one_way_s(self, here: str, there: str) -> float:
        """Distance of two regions; `SettingsError` for a pair that is not in the file."""
        for distance in self.distances:
            if set(distance.between) == {here, there}:
                return distance.one_way_ms / 1000
        known = ", ".join("-".join(distance.between) for distance in self.distances)
        raise SettingsError(
            f"regions: no distance is known between {here} and {there}, only of {known}"
        )


def read_profiles(path: Path = BUILTIN) -> Catalogue:
    """The catalogue in a file, or `SettingsError` that names every wrong field."""
    try:
        return Catalogue.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"cannot read link profiles {path}: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
    except ValidationError as error:
        raise SettingsError(f"{path}: {problems_text(error)}") from None


def cycled(names: Sequence[str], count: int) -> tuple[str, ...]:
    """`count` names, beginning again where the list ends."""
    return tuple(names[number % len(names)] for number in range(count))
