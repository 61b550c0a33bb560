"""A card in virtual time: it makes what it was given while the host goes on."""

from dataclasses import dataclass, field

from torch import Tensor

from node.model.queue import Behind


@dataclass
class Card:
    """Seconds of the host's clock, and until when the device is busy."""

    now_s: float = 0.0
    busy_until_s: float = 0.0
    idle_s: float = 0.0
    """Time for which the device had nothing to do, between two things to do."""
    pinned: list[Tensor] = field(default_factory=list)

    def work(self, seconds: float) -> None:
        """Give the device this much to do, behind what it has to do already."""
        began_s = max(self.now_s, self.busy_until_s)
        self.idle_s += began_s - self.busy_until_s if self.busy_until_s else 0.0
        self.busy_until_s = began_s + seconds

    def queue(self) -> Behind:
        """The product's queue of passes, on this device."""
        return Behind(lambda: Mark(self), self._pin, lambda: self.now_s)

    def _pin(self, tokens: Tensor) -> Tensor:
        self.pinned.append(tokens)
        return tokens


@dataclass
class Mark:
    """An event of the card."""

    card: Card
    at_s: float = 0.0

    def record(self) -> None:
        self.at_s = max(self.card.now_s, self.card.busy_until_s)

    def query(self) -> bool:
        return self.card.now_s >= self.at_s

    def synchronize(self) -> None:
        self.card.now_s = max(self.card.now_s, self.at_s)

    def elapsed_time(self, end_event: "Mark", /) -> float:
        return 1000 * (end_event.at_s - self.at_s)
