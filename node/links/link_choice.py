"""The choice between links: which of two between the same nodes stays (both ends choose the same
one), and which pipe without a proof makes room. Pure.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proven link, as one of its ends sees it."""

    instance: int
    """The peer's process."""
    dialled: bool
    """Whether this end opened its pipe."""
    relayed: bool
    """Whether a third machine carries its bytes."""


def replaces(new: Candidate, old: Candidate, *, own_is_lower: bool) -> bool:
    """Whether a new link takes the place of an old one. `own_is_lower`: this end's peer id is the
    lower one of the two.
    """
    if new.instance != old.instance:
        return True  # the peer's process started anew: the old link is dead
    if new.relayed != old.relayed:
        return old.relayed
    if new.dialled == old.dialled:
        return True  # an end dials again only when its old link is dead
    return own_is_lower == new.dialled


def host_part(address: str) -> str:
    """The part of an address that its connections have in common: all but the port."""
    return address.rpartition(":")[0]


def crowded_out(hosts: Sequence[str], members: Collection[str]) -> int:
    """The place of the pipe that makes room for another, among pipes of these hosts, the oldest
    first: the oldest of the host that has the most. Hosts of members keep their pipes as long as
    there are others.
    """
    others = [host for host in hosts if host not in members] or hosts
    counts = Counter(others)
    fullest = max(counts.values())
    return next(place for place, host in enumerate(hosts) if counts.get(host) == fullest)
