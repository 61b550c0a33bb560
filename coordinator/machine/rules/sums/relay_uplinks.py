"""The uplinks of relays that offer to add, by what members say of their links. Pure.

A member's uplink is measured by the time until others hold its payload. A relay announces none. But
members say at which rate content comes over each of their links
(`protocol.mixing.link_report`), and those to relays are among them. Such a rate is what one link
gets while others are at work, and no uplink. So a relay is compared with members, by the same
receiver:

    share of a receiver     its rate from the relay / the median of its rates from members
    uplink of the relay     the median uplink of members * the median share of receivers

Rules
- Receivers are the members that rounds wait for: in a public run a free key decides nothing.
- From fewer than `RECEIVERS_MIN` nothing follows: the relay counts as the median member.
- The share is at most `SHARE_MAX`, and at least one part of `SHARE_MAX`.

A relay that serves many at once gives each less. So it counts for less the more it is asked for,
until its results reach others as quickly as those of members.
"""

from statistics import median_low
from typing import Final

from coordinator.machine.state.run import Run
from protocol.ids import PeerId

RECEIVERS_MIN: Final = 3
"""Least number of receivers whose word counts: with two, one alone would decide."""

SHARE_MAX: Final = 8
"""Times the median member that a relay counts for at most: receivers beside it find it quick."""

_PARTS: Final = 1000
"""Parts of one in which shares are counted."""


def relay_uplinks(run: Run, median_bit_s: int) -> dict[PeerId, int]:
    """The uplinks in bytes a second, at least 1, of the relays that may add; `median_bit_s` is that
    of the measured members.
    """
    shares = _shares(run)
    return {
        relay: max(1, median_bit_s * _share(shares.get(relay, [])) // (8 * _PARTS))
        for relay in run.relays.here()
        if run.may_add(relay)
    }


def _shares(run: Run) -> dict[PeerId, list[int]]:
    """By sender what each receiver says that it counts for beside the median member, in parts."""
    members = run.members
    receivers = [member for member in members.ready() if members.keeps_time(member.peer)]
    senders = {member.peer for member in receivers}
    shares = dict[PeerId, list[int]]()
    for receiver in receivers:
        rates = {link.peer: link.bit_s for link in receiver.work.links if link.bit_s}
        if from_members := [rate for peer, rate in rates.items() if peer in senders]:
            median = median_low(from_members)
            for peer, rate in rates.items():
                shares.setdefault(peer, []).append(_PARTS * rate // median)
    return shares


def _share(shares: list[int]) -> int:
    """What follows from the words of all receivers, in parts."""
    if len(shares) < RECEIVERS_MIN:
        return _PARTS
    return min(max(median_low(shares), _PARTS // SHARE_MAX), _PARTS * SHARE_MAX)
