"""Slow motion: slower home lines, for machines that cannot compute for all homes at once.

The computation of all homes of a laboratory shares the cores of one machine. Where everything that
crosses a line takes a multiple of its time, and seconds are divided by that factor again, the same
computation takes a smaller part of the whole.
"""

from dataclasses import replace

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from node.gossip.machine import idle_uplink, pull_policy
from node.gossip.machine.events import SwarmLimits
from node.links import fetching, link, protocol, serving, upload_queue, window

WAITS = (
    (window, "QUEUE_MS"),
    (upload_queue, "AHEAD_MS"),
    (upload_queue, "METER_MS"),
    (upload_queue, "SOON_MS"),
    (pull_policy, "WAIT_MS"),
    (idle_uplink, "PAUSE_MS"),
    (protocol, "BEAT_MS"),
    (protocol, "SILENCE_MS"),
    (fetching, "PROGRESS_S"),
    (link, "ANSWER_S"),
    (serving, "ACKNOWLEDGE_S"),
)
"""Times by which gossip and links judge lines. In each of them a slowed line carries fewer bytes,
and a heartbeat waits longer behind the bytes in the queue, both by the factor."""


def slow_motion(link: HomeLink, times: int) -> HomeLink:
    """The line slowed by a factor: rate, delay and the wait in its queue, which keeps its bytes.
    Jitter stays.
    """

    def slower(way: LinkDirection | None) -> LinkDirection | None:
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
