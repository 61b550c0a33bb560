"""Slow motion: slower home lines, for machines that cannot compute for all homes at once.

The computation of all homes of a laboratory shares the cores of one machine. Where everything that
crosses a line takes a multiple of its time, and seconds are divided by that factor again, the same
computation takes a smaller part of the whole.
"""

from dataclasses import replace

from lockstep.wan.home_link import HomeLink, Way
from node import invitations, live_pulls, uploads
from node.exchange_events import SwarmLimits
from node.links import open_link, session, window

WAITS = (
    (window, "QUEUE_MS"),
    (uploads, "AHEAD_MS"),
    (uploads, "METER_MS"),
    (uploads, "SOON_MS"),
    (live_pulls, "WAIT_MS"),
    (invitations, "PAUSE_MS"),
    (session, "BEAT_MS"),
    (session, "SILENCE_MS"),
    (open_link, "PROGRESS_SECONDS"),
)
"""Times by which gossip and links judge lines. In each of them a slowed line carries fewer bytes,
and a heartbeat waits longer behind the bytes in the queue, both by the factor."""


def slow_motion(link: HomeLink, times: int) -> HomeLink:
    """The line slowed by a factor: rate, delay and the wait in its queue, which keeps its bytes.
    Jitter stays."""

    def slower(way: Way | None) -> Way | None:
        return way and replace(
            way,
            rate_bit_s=way.rate_bit_s // times,
            delay_s=way.delay_s * times,
            queue_s=way.queue_s * times,
        )

    return HomeLink(slower(link.up), slower(link.down))


def slow_waits(times: int) -> None:
    """Multiply the patience of this process's gossip."""
    for module, name in WAITS:
        setattr(module, name, times * getattr(module, name))
    # No caller states a `stall_ms`, and a dataclass keeps its defaults in `__init__`.
    initialise = SwarmLimits.__init__
    *others, stall_ms = initialise.__defaults__ or ()
    initialise.__defaults__ = (*others, times * stall_ms)
