"""The pipes that peers have opened, weighed by network until a key is proven (`border.crowd`)."""

import contextlib
import itertools
from collections.abc import Iterator, Mapping

from border.crowd import Crowd
from node.system.clock import own_clock_ms
from node.transports.libp2p.multiaddr import host_of
from node.transports.libp2p.pipe import SocketPipe

PEER_PIPES_MAX = 4
"""Pipes of one peer of libp2p on which it has proven no key yet; a node needs one."""


class AcceptedPipes:
    """Accepted pipes, `places` at once. Half of the places are for those without a proven key: the
    oldest one of the most crowded network is broken where there are more. So are all such pipes of
    a peer that has more than `PEER_PIPES_MAX`.
    """

    def __init__(self, places: int) -> None:
        self._crowd = Crowd(places)
        self._pipes: dict[int, SocketPipe] = {}
        self._numbers = itertools.count()

    @property
    def cuts(self) -> Mapping[str, int]:
        """Pipes that were broken, by reason."""
        return self._crowd.cuts

    @contextlib.contextmanager
    def place(self, pipe: SocketPipe) -> Iterator[bool]:
        """A place for the block; yields whether there is one."""
        number = next(self._numbers)
        self._pipes[number] = pipe
        try:
            for each, other in self._pipes.items():
                if other.is_admitted:
                    self._crowd.prove(each, own_clock_ms())
            for cut in self._crowd.come(number, host_of(pipe.contact.address), own_clock_ms()):
                self._pipes[cut].cut()
            self._bound(pipe.contact.peer)
            yield not pipe.is_cut
        finally:
            del self._pipes[number]
            self._crowd.leave(number, own_clock_ms())

    def _bound(self, peer: str) -> None:
        pipes = [each for each in self._pipes.values() if each.contact.peer == peer]
        unproven = [each for each in pipes if not each.is_admitted]
        for each in unproven if len(unproven) > PEER_PIPES_MAX else ():
            each.cut()
