"""Slow motion: home lines that are so many times slower, for machines that cannot be so many homes at once.

What all homes of a laboratory compute shares the cores of one machine. Where everything that crosses a line takes a
multiple of its time, and seconds are divided by that again, the same computing takes as much less of the whole.
"""

from dataclasses import replace

from lockstep.wan.lab.home_link import HomeLink, LinkDirection
from node.gossip.machine import idle_uplink, pull_policy
from node.gossip.machine.events import SwarmLimits
from node.links import link, protocol, serving, upload_queue, window

WAITS = (
    (window, "QUEUE_MS"),
    (upload_queue, "AHEAD_MS"),
    (upload_queue, "METER_MS"),
    (upload_queue, "SOON_MS"),
    (pull_policy, "WAIT_MS"),
    (idle_uplink, "PAUSE_MS"),
    (protocol, "BEAT_MS"),
    (protocol, "SILENCE_MS"),
    (link, "PROGRESS_S"),
    (serving, "ACKNOWLEDGE_S"),
)
"""Spans of time by which gossip and links judge lines: in each of them a slowed line would carry so many times fewer
bytes, and a heartbeat waits as many times longer behind those that queue."""


def slow_motion(link: HomeLink, times: int) -> HomeLink:
    """The line so many times slower: rate, delay and the wait in its queue, which has as many bytes. Jitter stays."""

    def slower(way: LinkDirection | None) -> LinkDirection | None:
        return way and replace(
            way, rate_bit_s=way.rate_bit_s // times, delay_s=way.delay_s * times, queue_s=way.queue_s * times
        )

    return HomeLink(slower(link.up), slower(link.down))


def slow_waits(times: int) -> None:
    """Give the gossip of this process as much more patience."""
    for module, name in WAITS:
        setattr(module, name, times * getattr(module, name))
    initialise = SwarmLimits.__init__  # nobody states a `stall_ms`, and a dataclass keeps its defaults there
    *others, stall_ms = initialise.__defaults__ or ()
    initialise.__defaults__ = (*others, times * stall_ms)  # type: ignore[attr-defined]
