"""A member of a run that mixes by pairs, without network, disk and clock: what survives a kill.

                    Opened(r)                        Committed(r): edges
        (between) ------------> mixing, fetches -------------------------> (between), steps
                                 |    ^
                                 '----'  Fetched: kept on disk, then told

Rules, each of which keeps an edge from being mixed by one end alone:

- A member saves its state, with the messages that it sends in the round, *before* a neighbour may
  fetch them. After a kill it serves the same bytes again.
- It keeps a neighbour's message on disk *before* it says that it holds it. An edge is committed
  only if both ends said so (`protocol.mixing.weights.committed_edges`), so each can always mix it.
- A commit is applied to the state as it was saved, from the messages kept: after a kill again, with
  the same result. A step that was taken since the state was saved is lost; an edge never is.
- A member that was away finds its round decided. Rounds that it missed have no edge of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from node.gossip_adam.mixer import Mixer
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId
from protocol.mixing.topologies import Edge, Topology
from protocol.mixing.weights import shares

State = dict[str, Any]
"""Numbers, names and tensors, for a state file."""


@dataclass(frozen=True, slots=True)
class RoundBegun:
    """A round begins."""

    round: int
    members: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class Saved:
    """The state in which a round was opened is on disk: neighbours may fetch."""

    round: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """A neighbour's message of a round is here."""

    round: int
    peer: PeerId
    message: Tensor


@dataclass(frozen=True, slots=True)
class Committed:
    """The edges of a round that both ends hold; none for a skipped round."""

    round: int
    edges: tuple[Edge, ...]


@dataclass(frozen=True, slots=True)
class Save:
    """Write `Member.state()` to disk, and say `Saved`."""

    round: int


@dataclass(frozen=True, slots=True)
class Fetch:
    """Ask a neighbour for its message of the round."""

    round: int
    peer: PeerId


@dataclass(frozen=True, slots=True)
class Keep:
    """Write a message to disk; effects behind it wait for that."""

    fetched: Fetched


@dataclass(frozen=True, slots=True)
class Holds:
    """Tell the coordinator that a neighbour's message is held."""

    round: int
    peer: PeerId


Event = RoundBegun | Saved | Fetched | Committed
Effect = Save | Fetch | Keep | Holds


class Member:
    """One member: a mixer and the round that it mixes."""

    def __init__(self, own: PeerId, mixer: Mixer, topology: Topology) -> None:
        self.mixer = mixer
        self._own, self._topology = own, topology
        self._decided = -1
        """The last round decided or skipped by an absence."""
        self._opened: RoundBegun | None = None
        self._is_saved = False
        self._sent: dict[PeerId, Tensor] = {}
        self._kept: dict[PeerId, Tensor] = {}

    @property
    def round(self) -> int | None:
        """The round being mixed, or None between two rounds."""
        return self._opened.round if self._opened else None

    def handle(self, event: Event) -> list[Effect]:
        """Take in an event and say what to do, in order.

        `RemoteProtocolError` for a message that is none, which is as if it had never come.
        """
        match event:
            case RoundBegun():
                return self._open(event)
            case Saved(round):
                self._is_saved = self._is_saved or round == self.round
                return []
            case Fetched():
                return self._fetched(event)
            case Committed():
                return self._committed(event)

    def message_for(self, round: int, peer: PeerId) -> Tensor | None:
        """This member's message, for a neighbour that fetches it; None if it has none, or none yet
        that would be the same after a kill.
        """
        return self._sent.get(peer) if self.round == round and self._is_saved else None

    def state(self) -> State:
        """All that a restart needs, but the messages kept; tensors are copies."""
        opened = self._opened
        return {
            "mixer": self.mixer.state(),
            "decided": self._decided,
            "opened": (opened.round, list(opened.members)) if opened else None,
            "sent": {peer: message.clone() for peer, message in self._sent.items()},
        }

    def restore(self, state: State, kept: Mapping[tuple[int, PeerId], Tensor]) -> list[Effect]:
        """Go on from a saved state and the messages kept, by round and sender."""
        self.mixer.load(state["mixer"])
        self._decided = state["decided"]
        self._sent = dict(state["sent"])
        self._opened, self._kept = None, {}
        if state["opened"] is None:
            return []
        round, members = state["opened"]
        self._opened, self._is_saved = RoundBegun(round, tuple(members)), True
        self._kept = {peer: kept[round, peer] for peer in self._sent if (round, peer) in kept}
        return [
            Holds(round, peer) if peer in self._kept else Fetch(round, peer)
            for peer in sorted(self._sent)
        ]

    def _open(self, event: RoundBegun) -> list[Effect]:
        if self._opened is not None:
            raise LocalProtocolError(
                f"expected round {self.round} to be decided before another opens, "
                f"got round {event.round}"
            )
        if event.round <= self._decided:
            return []  # an old announcement, after a restart
        neighbours = sorted(shares(self._own, edges := self._edges(event), edges))
        self._opened, self._is_saved, self._kept = event, False, {}
        self._sent = self.mixer.begin(neighbours)
        return [Save(event.round), *(Fetch(event.round, peer) for peer in neighbours)]

    def _fetched(self, event: Fetched) -> list[Effect]:
        if event.round != self.round or event.peer not in self._sent or event.peer in self._kept:
            return []  # late, or twice
        self.mixer.judge(event.peer, event.message)
        self._kept[event.peer] = event.message
        return [Keep(event), Holds(event.round, event.peer)]

    def _committed(self, event: Committed) -> list[Effect]:
        if self._opened is None or event.round != self._opened.round:
            if any(self._own in edge for edge in event.edges) and event.round > self._decided:
                raise RemoteProtocolError(
                    f"expected no edge of a member that is not mixing round {event.round}, got one"
                )
            if self._opened is None:
                self._decided = max(self._decided, event.round)
            return []  # another round's, missed or long decided
        row = shares(self._own, self._edges(self._opened), event.edges)
        missing = sorted(set(row).difference(self._kept))
        if missing:
            raise RemoteProtocolError(
                f"expected edges with messages that are held, got round {event.round} with "
                f"{missing}"
            )
        self.mixer.finish(row, {peer: self._kept[peer] for peer in row})
        self._decided, self._opened, self._sent, self._kept = event.round, None, {}, {}
        return []

    def _edges(self, opened: RoundBegun) -> tuple[Edge, ...]:
        return self._topology.edges(opened.round, opened.members)
