"""One payload as the exchange sees it: its holders, and the peers that failed to give it. Pure.

Part of the exchange: nothing here changes except through `Exchange.handle`.
"""

from collections.abc import Set
from dataclasses import InitVar, dataclass, field

from node.system.backoff import Backoff
from protocol.ids import PeerId

BACKOFF_FIRST_MS = 500
"""Pause after a source's first failure; it doubles with each further one."""

BACKOFF_MAX_MS = 10_000
"""Longest pause: a commit is available by invariant, so any holder of its payloads is worth asking
again soon."""

ABSENCES = 3
"""Failures in a row to give a payload after which a peer counts as one that does not keep it. One
is not enough: a relay may be fetching it just then."""


@dataclass(slots=True)
class Failures:
    """Failures of one source in a row, and the pause that follows the last one."""

    count: int = 0
    retry_ms: int = 0
    """Until then the source is not asked again."""
    first_ms: InitVar[int] = BACKOFF_FIRST_MS
    _backoff: Backoff = field(init=False, repr=False)

    def __post_init__(self, first_ms: int) -> None:
        self._backoff = Backoff(first_ms, BACKOFF_MAX_MS)

    def add(self, now_ms: int, *, broke: bool = False) -> None:
        """Count one more failure and begin its pause: the first one again where a link `broke`,
        however often, for the next link is open soon or the next question fails otherwise.
        """
        self.count += 1
        if broke:
            self._backoff.reset()
        self.retry_ms = now_ms + self._backoff.next()

    def reset(self) -> None:
        """Forget all failures, after a success."""
        self.count = self.retry_ms = 0
        self._backoff.reset()

    def is_over(self, now_ms: int) -> bool:
        """Whether the pause is over, or there was none."""
        return now_ms >= self.retry_ms


@dataclass(slots=True)
class Payload:
    """One payload of one round, or a part of one."""

    size: int
    """Bytes: of the first offer or of the commit, and the true size once it is held."""
    ranges: int = 0
    """Bits of the ranges whose part it is, one as a rule: an author that says nothing in two of
    equal length has one part for both. None for what is no part."""
    held: bool = False
    """This node has it, verified."""
    own: bool = False
    """This node is its author."""
    disputed: bool = False
    """Lists of several authors name it, of several sizes: its digest alone identifies it."""
    wanted: bool = False
    """A commit names it; or, before that, a question for a sum that this node is to find."""
    replayed: bool = False
    """A commit names it, and its round was never open on this node."""
    attempts: int = 0
    """Pulls of it so far."""
    idle_holder: PeerId | None = None
    """An idle holder to which its pull is moving."""
    holders: set[PeerId] = field(default_factory=set)
    """Peers that hold it, by their own word or by the coordinator's."""
    told: set[PeerId] = field(default_factory=set)
    """Peers to which this node offered it."""
    absent: dict[PeerId, Failures] = field(default_factory=dict)
    """Peers that were asked and did not give it, since they last offered it."""

    @property
    def missing(self) -> bool:
        """Whether it is wanted and this node lacks it."""
        return self.wanted and not self.held

    def may_ask(self, peer: PeerId, now_ms: int) -> bool:
        """Whether the pause after the peer's last failure to give it is over."""
        return peer not in self.absent or self.absent[peer].is_over(now_ms)

    def add_holder(self, peer: PeerId) -> None:
        """A peer says that it holds it."""
        self.holders.add(peer)
        self.absent.pop(peer, None)

    def remove_holder(self, peer: PeerId, now_ms: int) -> None:
        """A peer was asked and did not give it."""
        self.holders.discard(peer)
        self.absent.setdefault(peer, Failures()).add(now_ms)

    def kept_by_none(self, peers: Set[PeerId]) -> bool:
        """Whether at least one peer failed to give it, and each of `peers` did so `ABSENCES`
        times.
        """
        return bool(self.absent) and all(
            peer in self.absent and self.absent[peer].count >= ABSENCES for peer in peers
        )
