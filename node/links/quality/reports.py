"""When a node tells the coordinator what it measures of its links, and in which words. Pure.

The coordinator writes each report into its journal. So one goes out when another link was measured
or a value has changed much, at most every `PAUSE_MS`; and the same words are said again every
`REPEAT_MS`, for a coordinator that has not heard them: repeated ones cost it nothing.
"""

from collections.abc import Iterable, Set
from typing import Final, Protocol

from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX

PAUSE_MS: Final = 15_000
"""Shortest pause between two reports of this node."""

REPEAT_MS: Final = 120_000
"""Pause after which a node says the same again."""

CHANGE: Final = 1.5
"""Factor by which a value has changed much."""

ROUND_TRIP_STEP_MS: Final = 5
"""Difference of round trips that is none: clocks have steps, and processes wait their turn."""


_Words = tuple[int, int, bool, bool]
"""Round trip and rate of a link, whether its peer is greedy, and whether it breaks."""


class Measurement(Protocol):
    """An open link, with what its meter says."""

    @property
    def peer(self) -> PeerId:
        """The other end."""

    @property
    def round_trip_ms(self) -> int | None:
        """Median round trip; None while unknown."""

    @property
    def bit_s(self) -> int:
        """Bits a second from the other end; 0 while unknown."""


class LinkReports:
    """The reports of one node."""

    def __init__(self) -> None:
        self._told: dict[PeerId, _Words] = {}
        self._told_ms: int | None = None
        self._session = -1

    def due(
        self,
        links: Iterable[Measurement],
        session: int,
        now_ms: int,
        greedy: Set[PeerId] = frozenset(),
        breaking: Set[PeerId] = frozenset(),
    ) -> wire.NodeMessage | None:
        """The report that should go out now, in the session with this number; None for none.
        `greedy` are peers that take the same payloads again and again, `breaking` those to which
        links break again and again while payloads come.
        """
        measured = {
            link.peer: (min(link.round_trip_ms, ROUND_TRIP_MS_MAX), min(link.bit_s, BIT_S_MAX))
            for link in links
            if link.round_trip_ms is not None
        }
        for peer in breaking & self._told.keys() - measured.keys():  # its link is new, or away
            measured[peer] = self._told[peer][:2]
        found = {
            peer: (*values, peer in greedy, peer in breaking) for peer, values in measured.items()
        }
        if not found:
            return None
        is_new = self._told_ms is None or session != self._session
        waited_ms = 0 if self._told_ms is None else now_ms - self._told_ms
        if is_new or (waited_ms >= PAUSE_MS and self._differs(found)):
            nearest = sorted(found, key=lambda peer: (found[peer], peer))[:LINKS_MAX]
            self._told = {peer: found[peer] for peer in sorted(nearest)}
        elif waited_ms < REPEAT_MS:
            return None
        self._told_ms, self._session = now_ms, session
        return self._message()

    def _differs(self, found: dict[PeerId, _Words]) -> bool:
        """Whether a link was not told of, or has changed much since."""
        if len(self._told) < min(len(found), LINKS_MAX):
            return True
        both = ((self._told[peer], found[peer]) for peer in self._told.keys() & found.keys())
        return any(
            _changed(old[0], new[0], ROUND_TRIP_STEP_MS)
            or _changed(old[1], new[1], 0)
            or old[2:] != new[2:]
            for old, new in both
        )

    def _message(self) -> wire.NodeMessage:
        links = [
            wire.MeasuredLink(
                peer_id=peer,
                round_trip_ms=round_trip_ms,
                bit_per_second=bit_s,
                greedy=greedy,
                breaks=breaks,
            )
            for peer, (round_trip_ms, bit_s, greedy, breaks) in self._told.items()
        ]
        return wire.NodeMessage(links=wire.LinksMeasured(links=links))


def _changed(old: int, new: int, step: int) -> bool:
    least, most = sorted((old, new))
    return most - least > step and most > CHANGE * least
