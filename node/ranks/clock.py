"""The time in which a rank computes and waits for nobody: its blocks, on the way there.

    a block      its weights are gathered | computes | they are let go of
    this clock                            '--------'

Ranks wait for each other at every block, so the time of a pass is that of the slowest one and says
nothing of the others. In a block there is no exchange, and its work grows with the samples of this
rank alone; that of embedding and head with the samples of all. Whatever slows a rank counts: an
older card, fewer threads, other programs.
"""

import time
from collections.abc import Iterable
from typing import Any

import torch
from torch import nn


class BlockClock:
    """The clock of one rank's network, whose blocks are sharded already."""

    def __init__(self, blocks: Iterable[nn.Module], device: torch.device) -> None:
        self._device = device
        self._begun: Any = None
        self._spans = list[tuple[Any, Any]]()
        for block in blocks:
            block.register_forward_pre_hook(self._begin)  # behind torch's, which gathers
            block.register_forward_hook(self._end, prepend=True)  # in front of torch's

    def start(self) -> None:
        """A pass begins."""
        self._spans.clear()

    def seconds(self) -> float:
        """The time since the start, once the device has ended what it was given; 0 for a network
        without blocks.
        """
        return sum(_between(*span) for span in self._spans)

    def _begin(self, *_: Any) -> None:
        self._begun = self._now()

    def _end(self, *_: Any) -> None:
        self._spans.append((self._begun, self._now()))

    def _now(self) -> Any:
        """A point in the device's time."""
        if self._device.type != "cuda":
            return time.monotonic()
        event: Any = torch.Event(self._device, enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event


def _between(begun: Any, end: Any) -> float:
    """Seconds between two points in a device's time."""
    if isinstance(end, float):
        return float(end - begun)
    return float(begun.elapsed_time(end)) / 1000
