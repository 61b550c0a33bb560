"""The rank of this process in its node, as torchrun tells it, or who starts ranks as it does."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from protocol.errors import SettingsError

RANKS_MAX = 1024
"""Ranks of one node: rank 0 sends each of them the network."""

NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that make a process a rank."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """A rank, and where all of them meet. The default is a process alone."""

    rank: int = 0
    count: int = 1
    local_rank: int = 0
    """The rank among those of this machine."""
    local_count: int = 1
    """Ranks of this machine."""
    address: str = ""
    port: int = 0
    """Where torch's store listens."""
    has_store: bool = False
    """Whether another process, torchrun's own, is at that port for rank 0."""
    attempt: str = "0"
    """The start of all ranks that this is: a store may outlive the ranks."""

    @property
    def is_launched(self) -> bool:
        """Whether another program started this rank, and the others with it."""
        return self.count > 1

    def threads_among(self, ranks: Collection[int], between: int) -> int:
        """The number of CPU threads for this rank while these ranks work and the others wait. It
        has `between` of them between orders, and keeps them where none of these is on its machine.

            a pass     all ranks
            a step     those that have matrices to orthogonalise
            between    rank 0 has all of its machine, as the others wait for it, a follower its part
        """
        first = self.rank - self.local_rank
        here = sum(first <= rank < first + self.local_count for rank in ranks)
        every = between if self.rank == 0 else between * self.local_count
        return max(1, every // here) if here else between


def place_of(environment: Mapping[str, str]) -> RankPlace:
    """The place that the variables of an environment tell.

    Raises `SettingsError` for one that is no number, or out of bounds.
    """
    if not all(environment.get(name) for name in NEEDED):
        return RankPlace()
    count = _number(environment, "WORLD_SIZE", 1, RANKS_MAX)
    rank = _number(environment, "RANK", 0, count - 1)
    here = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(count)}
    here |= {name: environment[name] for name in here if environment.get(name)}
    return RankPlace(
        rank,
        count,
        _number(here, "LOCAL_RANK", 0, count - 1),
        _number(here, "LOCAL_WORLD_SIZE", 1, count),
        environment["MASTER_ADDR"],
        _number(environment, "MASTER_PORT", 1, 65535),
        has_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=environment.get("TORCHELASTIC_RESTART_COUNT") or "0",
    )


def environment_of(place: RankPlace) -> dict[str, str]:
    """The variables that tell a process its place."""
    return {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.count),
        "LOCAL_RANK": str(place.local_rank),
        "LOCAL_WORLD_SIZE": str(place.local_count),
        "MASTER_ADDR": place.address,
        "MASTER_PORT": str(place.port),
    }


def _number(environment: Mapping[str, str], name: str, least: int, most: int) -> int:
    words = environment[name]
    if not (words.isdecimal() and len(words) < 10 and least <= int(words) <= most):
        raise SettingsError(f"{name}: expected {least} to {most}, found {words[:40]!r}")
    return int(words)
