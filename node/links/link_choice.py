"""Which of two links between the same two nodes stays. Pure: both ends choose the same one."""

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
