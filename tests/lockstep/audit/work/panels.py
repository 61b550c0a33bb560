"""The authors and rounds of judged panels, and how many panels it takes until evidence."""

from collections.abc import Iterator

from lockstep.audit.work.judge import Book, PayloadAudit
from protocol.audit.lots import Draw
from protocol.audit.rule import EARLY_ROUNDS, SPACING_ROUNDS
from protocol.ids import PeerId, RunId

RUN = RunId("ab" * 16)
FIRST, *OTHERS = AUTHORS = [PeerId(f"{number:032x}") for number in range(4)]
DRAW = Draw(bytes(64), 200)


def round_of(number: int) -> int:
    """The round of an audit: the first may be judged, and each is far enough from the last."""
    return EARLY_ROUNDS + SPACING_ROUNDS * number


def audits_until(book: Book, panels: Iterator[list[PayloadAudit]]) -> int | None:
    """The number of panels until there is evidence against the first author; no other has any."""
    for number, panel in enumerate(panels, 1):
        found = book.take(round_of(number), panel, RUN, DRAW)
        assert {each.author for each in found} <= {FIRST}
        if found:
            return number
    return None
