"""An auditor's words: said at once, said again, taken back."""

from lockstep.audit.words import EVIDENCE_KEPT, WORDS_KEPT, Words
from protocol import wire_pb2 as wire
from protocol.ids import RunId, sha256
from protocol.sums.signed import SumSigned, WrongSum, read_wrong_sum


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


def test_the_newest_wrong_sum_of_each_summer_is_said_again_however_often_another_lies() -> None:
    said: list[wire.NodeMessage] = []
    words = Words(said.append)
    for round, key in enumerate([1, *[2] * (2 * EVIDENCE_KEPT)]):
        signed = SumSigned(0, sha256(b"wrong"), bytes([key]) * 32, bytes(64))
        words.refute(WrongSum(RunId("ab" * 16), round, signed, sha256(b"right")))
    said.clear()
    words.repeat()
    found = [read_wrong_sum(each.wrong_sum.body) for each in said]
    kept = [(each.round, each.signed.public_key[0]) for each in found]
    assert kept == [(0, 1), (2 * EVIDENCE_KEPT, 2)]
