"""The rounds that a node has worked in and that are undecided.

    extracted --announced--> undecided --settled--> (gone: counted or reclaimed)

Values that leave the momentum are here at the same instant, so that no interruption finds them in
neither. They are saved with the state.
"""

from collections.abc import Iterable

from node.replica.position import Pending


class PendingRounds:
    """Extractions that are taken out of the momentum and not settled, by round."""

    def __init__(self, restored: Iterable[Pending] = ()) -> None:
        """`restored`: those of the loaded state, which are to be announced again."""
        self._extracted = {pending.round: pending for pending in restored}
        self._announced: dict[int, Pending] = {}

    def add(self, pending: Pending) -> None:
        """Record a round that was just extracted. Called from a worker thread."""
        self._extracted[pending.round] = pending

    def announce(self, round: int) -> Pending:
        """The payload is in the log of payloads: the round counts as announced from now on."""
        pending = self._announced[round] = self._extracted.pop(round)
        return pending

    def settle(self, round: int) -> Pending | None:
        """Remove a round that is decided; None when this node announced nothing in it."""
        return self._announced.pop(round, None)

    def clear(self) -> None:
        """Forget everything: the state that it belongs to is discarded."""
        self._extracted.clear()
        self._announced.clear()

    @property
    def extracted(self) -> list[Pending]:
        """Those that are not announced, oldest first."""
        return _by_round(self._extracted)

    @property
    def announced(self) -> list[Pending]:
        """Those that are announced, oldest first."""
        return _by_round(self._announced)

    @property
    def saved(self) -> tuple[Pending, ...]:
        """All of them, oldest first."""
        return tuple(_by_round(self._extracted | self._announced))

    def of(self, round: int) -> Pending | None:
        """The announced round, None when nothing was announced in it or it is settled."""
        return self._announced.get(round)


def _by_round(pending: dict[int, Pending]) -> list[Pending]:
    return [pending[round] for round in sorted(pending)]
