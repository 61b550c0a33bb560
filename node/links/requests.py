"""The requests and the parts of one link: open ones counted, numbers checked. Pure.

Each end numbers its requests upwards, offers and fetches together, so that no number comes twice.
An offer is open until it is accepted or refused; a fetch until its last part, its refusal, or its
cancellation. Every count here is bounded, whatever the peer says.
"""

from collections.abc import Sized

from node.links.frames import PART_BYTES_MAX, PART_BYTES_MIN, Part
from node.links.protocol_events import Accepted, Refused
from node.links.window import WINDOW_BYTES_MAX
from protocol.errors import LocalProtocolError, RemoteProtocolError, UnavailableError
from protocol.wire_pb2 import Ack

FETCHES_MAX = 16
"""Fetches that one peer may have open on a link."""

OFFERS_OPEN_MAX = 8
"""Offers that one peer may have open on a link: an honest one sends one at a time."""

LATE_BYTES_MAX = 2 * WINDOW_BYTES_MAX
"""Bytes of parts that may still come when a fetch is cancelled: a window is on its way, and
acknowledgements ahead of the cancellation free another."""


class OwnRequests:
    """Requests of this end."""

    def __init__(self) -> None:
        self._count = 0
        self._offers: set[int] = set()
        self._fetches: dict[int, int] = {}  # with the end of the range, 0 for the blob's end

    def open_offer(self, name: str) -> int:
        """Open an offer to the peer of that name; returns its number. `UnavailableError` when too
        many are open.
        """
        request = self._next(self._offers, OFFERS_OPEN_MAX, name)
        self._offers.add(request)
        return request

    def open_fetch(self, end: int, name: str) -> int:
        """Open a fetch up to `end`, 0 for the blob's end; returns its number. `UnavailableError`
        when too many are open.
        """
        request = self._next(self._fetches, FETCHES_MAX, name)
        self._fetches[request] = end
        return request

    def is_fetch(self, request: int) -> bool:
        """Whether a fetch is open."""
        return request in self._fetches

    def close_fetch(self, request: int) -> bool:
        """Close a fetch; returns whether it was open."""
        return self._fetches.pop(request, None) is not None

    def close_answered(self, answer: Accepted | Refused) -> bool:
        """Close the request that the peer answered; False for a fetch that was cancelled meanwhile.
        `RemoteProtocolError` for an answer to no request.
        """
        request = answer.request
        if request in self._offers:
            self._offers.discard(request)
            return True
        if request in self._fetches and isinstance(answer, Refused):
            del self._fetches[request]
            return True
        if request in self._fetches or not 0 < request <= self._count:
            raise RemoteProtocolError(
                f"expected the answer to a request, got {type(answer).__name__} to {request}"
            )
        return False

    def expects(self, part: Part) -> bool:
        """Whether a part belongs to an open fetch; `RemoteProtocolError` when it is badly cut."""
        end = self._fetches.get(part.request)
        if end is not None and not is_well_cut(part, end):
            raise RemoteProtocolError(badly_cut(part))
        return end is not None

    def _next(self, open_requests: Sized, count_max: int, name: str) -> int:
        if len(open_requests) >= count_max:
            raise UnavailableError(f"{name} is busy with {count_max} requests of this node")
        self._count += 1
        return self._count


class PeerRequests:
    """Requests of the peer."""

    def __init__(self) -> None:
        self._newest = 0
        self._offers: set[int] = set()
        self._fetches: dict[int, int] = {}  # with the end of the range, 0 for the blob's end

    @property
    def open_offers(self) -> int:
        """Offers that are not answered yet."""
        return len(self._offers)

    @property
    def open_fetches(self) -> int:
        """Fetches whose last part has not been sent yet."""
        return len(self._fetches)

    def open_offer(self, request: int) -> None:
        """Open an offer; `RemoteProtocolError` for a used number, or too many."""
        self._check(request, self._offers, OFFERS_OPEN_MAX)
        self._offers.add(request)

    def open_fetch(self, request: int, end: int) -> None:
        """Open a fetch up to `end`, 0 for the blob's end; `RemoteProtocolError` for a used number,
        or too many.
        """
        self._check(request, self._fetches, FETCHES_MAX)
        self._fetches[request] = end

    def is_fetch(self, request: int) -> bool:
        """Whether a fetch is open."""
        return request in self._fetches

    def close(self, request: int) -> None:
        """Close an offer or a fetch, if it is open."""
        self._offers.discard(request)
        self._fetches.pop(request, None)

    def serve(self, part: Part) -> None:
        """Close the fetch that a part completes; `LocalProtocolError` for a badly cut part."""
        end = self._fetches[part.request]
        if not is_well_cut(part, end):
            raise LocalProtocolError(badly_cut(part))
        if part.offset + len(part.data) == min(end or part.total_bytes, part.total_bytes):
            del self._fetches[part.request]

    def _check(self, request: int, open_requests: Sized, count_max: int) -> None:
        if request <= self._newest:
            raise RemoteProtocolError(
                f"expected a request numbered above {self._newest}, got {request}"
            )
        if len(open_requests) >= count_max:
            raise RemoteProtocolError(
                f"expected at most {count_max} open requests of a kind, got one more"
            )
        self._newest = request


class Received:
    """Parts that came, in bytes: arrived, taken by their fetches, acknowledged."""

    def __init__(self) -> None:
        self._arrived_bytes = 0
        self._taken_bytes = 0
        self._taken_ms = 0
        self._acknowledged_bytes = 0
        self._late_bytes_left = 0

    @property
    def waiting_bytes(self) -> int:
        """Bytes that arrived and were not taken yet."""
        return self._arrived_bytes - self._taken_bytes

    def arrive(self, part: Part, *, is_late: bool) -> None:
        """Count a part; `is_late`: of no open fetch. `RemoteProtocolError` for more bytes than an
        honest peer sends.
        """
        if is_late:
            self._late_bytes_left -= len(part.data)
            if self._late_bytes_left < 0:
                raise RemoteProtocolError(
                    f"expected parts of open fetches, got some of request {part.request}"
                )
        self._arrived_bytes += len(part.data)
        if self.waiting_bytes > WINDOW_BYTES_MAX + PART_BYTES_MAX:
            raise RemoteProtocolError(
                f"expected at most {WINDOW_BYTES_MAX} unacknowledged bytes, got more"
            )

    def take(self, count: int, now_ms: int) -> None:
        """Count bytes that a fetch has taken; `LocalProtocolError` for more than arrived."""
        if count > self.waiting_bytes:
            raise LocalProtocolError(
                f"expected at most {self.waiting_bytes} bytes taken, as many as arrived, "
                f"got {count}"
            )
        self._taken_bytes += count
        self._taken_ms = now_ms

    def allow_late(self) -> None:
        """A fetch was cancelled: up to `LATE_BYTES_MAX` of parts may still come."""
        self._late_bytes_left = LATE_BYTES_MAX

    def acknowledge(self) -> Ack | None:
        """One acknowledgement for all bytes taken since the last one; None when there are none."""
        if self._acknowledged_bytes == self._taken_bytes:
            return None
        self._acknowledged_bytes = self._taken_bytes
        return Ack(part_bytes=self._taken_bytes, taken_ms=self._taken_ms)


def is_well_cut(part: Part, end: int) -> bool:
    """Whether a part lies within the requested range of its blob (`end` 0: to the end), and is
    large enough or the last.
    """
    missing = min(end or part.total_bytes, part.total_bytes) - part.offset - len(part.data)
    return missing == 0 or (missing > 0 and len(part.data) >= PART_BYTES_MIN)


def badly_cut(part: Part) -> str:
    """The error of a part that is not well cut."""
    return (
        f"expected a part of {PART_BYTES_MIN} bytes or more, or the last, "
        f"got {len(part.data)} at {part.offset} of {part.total_bytes}"
    )
