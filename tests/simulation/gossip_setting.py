"""Settings of a simulated gossip: home links, relays, faults; the bound that no gossip beats."""

import itertools
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Home:
    """A home link: bytes per millisecond up and down, and the delay to the middle of the internet,
    in milliseconds.
    """

    up: float
    down: float
    delay_ms: float


def home(up_mbit: float, down_mbit: float, rtt_ms: float) -> Home:
    """A home link in the usual units; the round trip is to the middle and back."""
    return Home(up_mbit * 125, down_mbit * 125, rtt_ms / 2)


EQUAL = home(20, 20, 25)
PROFILES = {
    "dsl-poor": home(0.4, 2, 70),
    "dsl": home(2, 16, 40),
    "cable": home(20, 220, 25),
    "fibre": home(300, 300, 10),
    "lte": home(8, 30, 70),
    "5g-fixed": home(18, 150, 55),
    "starlink": home(17, 118, 45),
}
"""Home links as they are sold, by kind."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One simulation: in each round each member publishes a payload of `size` bytes, at most
    `jitter_ms` after its start.
    """

    homes: tuple[Home, ...]
    size: int
    neighbours: int = 4
    relays: int = 0
    """Number of relays: the last nodes."""
    links: frozenset[tuple[int, int]] | None = None
    """Pairs that can reach each other, the smaller first; None for all."""
    jitter_ms: float = 0.0
    ordered: bool = True
    """Whether requests wait in the order of `Uploads` and their takers hear of progress; else all
    are served at once."""
    faults: int | None = None
    """A seed: a tenth of the offers is lost, and one transfer in twenty breaks off."""
    rounds: int = 1
    """Gossips one after the other: the graph differs, and in the first one no rate is known."""


@dataclass(frozen=True, slots=True)
class Result:
    """Times and bytes of one simulation."""

    round_ms: tuple[float, ...]
    """Time from each round's start until every member has every payload."""
    done_ms: tuple[float, ...]
    """Time from the last round's start until each member has every payload."""
    duplicate_share: float
    """Bytes that arrived and were of no use, over the payload bytes that a node needs: the largest
    share of a node."""
    payload_up: tuple[int, ...]
    other_share: float
    """Control bytes over payload bytes, of all nodes."""


def bound_ms(homes: Sequence[Home], size: int) -> float:
    """Time that no gossip can beat: each node takes in all payloads of others, each own payload
    leaves once, and all bytes that are taken in go through the uplinks. For equal links: N - 1
    payloads over the slower direction.
    """
    others = len(homes) - 1
    everything = len(homes) * others * size / sum(home.up for home in homes)
    return max(everything, *(max(others * size / home.down, size / home.up) for home in homes))


def links_among(*groups: Collection[int]) -> frozenset[tuple[int, int]]:
    """Links between all members of each group."""
    return frozenset(pair for group in groups for pair in itertools.combinations(sorted(group), 2))
