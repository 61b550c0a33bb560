"""Who offers to whom in a round: a graph that every party and every replay derives alike.

Members are put on a ring in the order of SHA-256(round, member), and a member's neighbours are those at
distances 1, 2, 4, ... along it, and back. Links of doubling length spread a payload to N members in about
log2(N) hops, and the ring differs each round, so no pair of home links is stuck with each other.
"""

import hashlib
from collections.abc import Iterable

from protocol.ids import PeerId


def neighbours(round: int, members: Iterable[PeerId], own: PeerId, count: int) -> list[PeerId]:
    """At most `count` members, nearest powers of two first; empty when `own` is not a member or is alone."""
    ring = sorted(set(members), key=lambda member: hashlib.sha256(f"{round}:{member}".encode()).digest())
    if own not in ring:
        return []
    place, chosen, distance = ring.index(own), list[PeerId](), 1
    while distance < len(ring) and len(chosen) < count:
        for step in (distance, -distance):
            candidate = ring[(place + step) % len(ring)]
            if candidate != own and candidate not in chosen and len(chosen) < count:
                chosen.append(candidate)
        distance *= 2
    return chosen
