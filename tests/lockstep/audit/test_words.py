"""An auditor's words: said at once, said again, taken back."""

from lockstep.audit.words import WORDS_KEPT, Words
from protocol import wire_pb2 as wire
from protocol.ids import sha256


def test_a_word_is_said_at_once_and_again() -> None:
    said: list[wire.NodeMessage] = []
    words = Words(said.append)
    words.replayed(-1, 5, None, 0)
    words.replayed(0, 2**64 - 1, sha256(b"snapshot"), 2)
    expected = [
        wire.Audited(round=-1, state_digest=5),
        wire.Audited(round=0, state_digest=2**64 - 1, snapshot_sha256=sha256(b"snapshot"), voids=2),
    ]
    assert [each.audited for each in said] == expected
    words.repeat()
    assert [each.audited for each in said] == 2 * expected


def test_the_newest_are_kept_and_those_of_a_state_that_is_no_more_are_not() -> None:
    said: list[wire.NodeMessage] = []
    words = Words(said.append)
    for round in range(WORDS_KEPT + 10):
        words.replayed(round, round, None, 0)
    said.clear()
    words.repeat()
    assert len(said) == WORDS_KEPT
    words.take_back(20)
    said.clear()
    words.repeat()
    assert [each.audited.round for each in said] == list(range(10, 21))
