"""A fluid network: flows on home links at max-min fair rates, in virtual time.

A flow leaves through its sender's uplink and enters through its receiver's downlink. All flows
share the links max-min fairly, as TCP's do in the long run. Not modelled: loss and slow start of
TCP, jitter, buffers in routers.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from tests.simulation.gossip_setting import Home


@dataclass(slots=True, eq=False)
class Flow:
    """Bytes on their way from one node to another."""

    source: int
    target: int
    left: float
    """Bytes after the present part."""
    part_max: float
    part: float
    """Bytes in the present part."""
    to_part: float
    """Bytes until the end of the present part."""
    rate: float = 0.0
    on_part: Callable[[int], None] = field(default=lambda count: None)

    @property
    def unfinished(self) -> int:
        """Bytes of the present part that have left."""
        return round(self.part - self.to_part)


class Fluid:
    """Flows on links, at max-min fair rates."""

    def __init__(self, homes: Sequence[Home]) -> None:
        self._homes = homes
        self._flows: dict[Flow, None] = {}
        self._stale = False

    def add(self, flow: Flow) -> None:
        self._flows[flow] = None
        self._stale = True

    def remove(self, flow: Flow) -> None:
        self._stale = self._flows.pop(flow, flow) is None or self._stale

    def next_ms(self) -> float:
        """Time until a part is complete."""
        if self._stale:
            self._share()
        return min((flow.to_part / flow.rate for flow in self._flows), default=float("inf"))

    def advance(self, elapsed_ms: float) -> list[Flow]:
        """Let time pass, at most `next_ms`; returns the flows that completed a part, the last one
        or not.
        """
        complete = []
        for flow in self._flows:
            flow.to_part -= flow.rate * elapsed_ms
            if flow.to_part <= 1e-6 * flow.part:
                complete.append(flow)
        return complete

    def _share(self) -> None:
        """Progressive filling: the tightest link gives its flows equal shares, which bind them
        everywhere.
        """
        self._stale = False
        flows: dict[tuple[bool, int], dict[Flow, None]] = defaultdict(dict)
        for flow in self._flows:
            flows[True, flow.source][flow] = None
            flows[False, flow.target][flow] = None
        room = {
            link: self._homes[link[1]].up if link[0] else self._homes[link[1]].down
            for link in flows
        }
        while flows:
            tightest = min(flows, key=lambda link: room[link] / len(flows[link]))
            share = room[tightest] / len(flows[tightest])
            for flow in list(flows[tightest]):
                flow.rate = share
                for link in ((True, flow.source), (False, flow.target)):
                    room[link] = max(0.0, room[link] - share)
                    del flows[link][flow]
            flows = {link: on_it for link, on_it in flows.items() if on_it}


def push_to_all_ms(homes: Sequence[Home], size: int) -> float:
    """Time of the naive way: each node sends its payload to all others at once."""
    fluid, now_ms, end_ms, left = Fluid(homes), 0.0, 0.0, 0
    for source, target in itertools.permutations(range(len(homes)), 2):
        fluid.add(Flow(source, target, 0, 0, size, size))
        left += 1
    while left:
        elapsed_ms = fluid.next_ms()
        now_ms += elapsed_ms
        for flow in fluid.advance(elapsed_ms):
            fluid.remove(flow)
            left -= 1
            end_ms = max(end_ms, now_ms + homes[flow.source].delay_ms + homes[flow.target].delay_ms)
    return end_ms
