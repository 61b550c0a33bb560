"""The neighbours of a round: a graph that every party and every replay derives alike.

Members are put on a ring in the order of SHA-256(round, member), and a member's neighbours are
those at distances 1, 2, 4, ... along it, and back. Links of doubling length spread a payload to N
members in about log2(N) hops, and the ring differs each round, so no pair of home links is stuck
with each other.

    distance    0   1   2   3   4   5   6   7   8        first    at 1, 2, 4, 8, ... and back
                o---o---o-------o---------------o        then     the nearest others, while
                own                                               there is room: 3, 5, 6, 7, ...

Two members behind home routers may have no link to each other. Each then offers to as many others
as it would have had, the next ones in this order, so gossip goes around the gap, and everybody with
the same links still chooses alike.
"""

import hashlib
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, islice

from protocol.ids import PeerId


def neighbours(
    round: int,
    members: Iterable[PeerId],
    own: PeerId,
    count: int,
    linked: Collection[PeerId] | None = None,
) -> list[PeerId]:
    """`count` members, or all others if they are fewer, nearest powers of two first; none when
    `own` is not a member.

    `linked` are the members to whom a link is open, None for all: the others are passed over.
    """
    ring = sorted(
        set(members), key=lambda member: hashlib.sha256(f"{round}:{member}".encode()).digest()
    )
    if own not in ring:
        return []
    place = ring.index(own)
    ring = ring[place:] + ring[:place]
    in_order = _at(ring, chain(_doubling(len(ring)), range(1, len(ring))))
    return list(
        islice((member for member in in_order if linked is None or member in linked), count)
    )


def _at(ring: list[PeerId], distances: Iterable[int]) -> Iterator[PeerId]:
    """The members at these distances from the first of the ring, forth and back, each once."""
    steps = (step for distance in distances for step in (distance, -distance))
    return iter(dict.fromkeys(ring[step % len(ring)] for step in steps))


def _doubling(end: int) -> Iterator[int]:
    distance = 1
    while distance < end:
        yield distance
        distance *= 2
