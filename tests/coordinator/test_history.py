"""The history of rounds: what it keeps of effects and of a journal's commits."""

from collections.abc import Iterable

from coordinator import history
from coordinator.history import History
from coordinator.machine import decided_rounds
from coordinator.machine.decided_rounds import DecidedRound, OpenRounds
from coordinator.machine.events.effects import Assignment, CommitRound, Effect, OpenRound, SkipRound
from protocol.clock import Instants
from protocol.codec.commits import Commit, Entry
from protocol.ids import Digest, PeerId, RunId

ONE, TWO = PeerId("1" * 32), PeerId("2" * 32)


def commit(round: int, *authors: PeerId) -> Commit:
    entries = tuple(Entry(author, Digest(b"d" * 32), 100, 1, 4) for author in authors)
    return Commit(RunId("a" * 32), round, round, entries, 0, 0, Digest(b"p" * 32))


def opened(round: int, at_ms: int, *peers: PeerId) -> OpenRound:
    instants = Instants(at_ms, at_ms + 1000, at_ms + 1500, at_ms + 4000)
    assignments = tuple(Assignment(peer, (), False, "") for peer in peers)
    return OpenRound(round, round, instants, 0, 0, assignments)


class Feed:
    """A history, fed as the sequencer does it."""

    def __init__(self) -> None:
        self.history, self._open = History(), OpenRounds()

    def take(self, effects: Iterable[Effect], now_ms: int) -> None:
        effects = list(effects)
        self.history.take(effects, self._open.follow(effects, now_ms))


def take(history: History, effects: Iterable[Effect], now_ms: int = 0) -> None:
    """Feed effects to a history whose rounds have no times."""
    effects = list(effects)
    history.take(effects, OpenRounds().follow(effects, now_ms))


def test_a_committed_round_has_its_time_and_its_slot() -> None:
    feed = Feed()
    found = feed.history
    feed.take([opened(0, 10_000, ONE, TWO)], 10_000)
    feed.take([CommitRound(commit(0, ONE), ((),), 5.5)], 12_500)
    assert found.after(-1) == [
        {
            "round": 0,
            "outcome": "committed",
            "reason": "",
            "step": 0,
            "loss": 5.5,
            "contributors": 1,
            "assigned": 2,
            "payload_bytes": 100,
            "result_bytes": 0,
            "seconds": 2.5,
            "slot_seconds": 4.0,
            "compute_seconds": 1.0,
            "decided_at": 12.5,
        }
    ]


def test_a_skipped_round_keeps_its_reason() -> None:
    feed = Feed()
    found = feed.history
    feed.take([opened(0, 0, ONE), SkipRound(0, "0 contributors, quorum 1")], 4000)
    [record] = found.after(-1)
    assert (record["outcome"], record["reason"]) == ("skipped", "0 contributors, quorum 1")
    assert record["loss"] is None


def test_an_opening_that_is_repeated_to_one_member_changes_nothing() -> None:
    feed = Feed()
    found = feed.history
    feed.take([opened(0, 1000, ONE, TWO), opened(0, 1000, TWO)], 1000)
    feed.take([CommitRound(commit(0, ONE), ((),), 1.0)], 2000)
    assert found.after(-1)[0]["assigned"] == 2


def test_rounds_between_commits_of_a_journal_were_skipped() -> None:
    found = History()
    found.restore([(commit(0, ONE), 2.0)], {}, 0)
    found.restore([(commit(3, ONE, TWO), None)], {}, 3)
    assert [(each["round"], each["outcome"]) for each in found.after(-1)] == [
        (0, "committed"),
        (1, "skipped"),
        (2, "skipped"),
        (3, "committed"),
    ]
    assert found.after(-1)[3]["seconds"] is None
    assert (found.credit[ONE].rounds, found.credit[TWO].samples) == (2, 4)


def test_a_restart_forgets_neither_times_nor_reasons_of_a_journal() -> None:
    rows = {
        0: DecidedRound(0, "", 12_500, 10_000, 2, 4000, 1000),
        1: DecidedRound(1, "1 of 2 contributors has standing", 15_000, 12_000),
        3: DecidedRound(3, "nobody announced", 19_000, 18_000),
    }
    found = History()
    found.restore([(commit(0, ONE), 2.0)], {0: rows[0]}, 0)
    found.restore([(commit(2, ONE), 2.0)], {1: rows[1]}, 2)
    found.restore([], {3: rows[3]}, 3)
    assert [(each["reason"], each["seconds"]) for each in found.after(-1)] == [
        ("", 2.5),
        ("1 of 2 contributors has standing", 3.0),
        ("", None),
        ("nobody announced", 1.0),
    ]
    assert found.skipped_in_a_row() == 1, "the newest rounds too, behind the last commit"


def test_neither_rounds_nor_answers_grow_without_bound() -> None:
    feed = Feed()
    found = feed.history
    for round in range(history.ROUNDS_MAX + 10):
        feed.take([SkipRound(round, "")], round)
    assert len(found.records) == history.ROUNDS_MAX
    assert len(found.after(-1)) == history.REPLY_ROUNDS_MAX
    for round in range(10_000, 10_000 + 2 * decided_rounds.UNDECIDED_MAX):
        feed.take([opened(round, 0, ONE)], 0)
    feed.take([SkipRound(10_000, "forgotten"), SkipRound(10_127, "known")], 9)
    assert [each["seconds"] for each in found.after(9_999)] == [None, 0.009]


def test_times_are_counted_in_classes_and_a_journal_s_rounds_have_none() -> None:
    feed = Feed()
    found = feed.history
    found.restore([(commit(0, ONE), 2.0)], {0: DecidedRound(0, "", 9000, 2000)}, 0)
    feed.take([opened(1, 10_000, ONE), opened(2, 20_000, ONE), opened(3, 0, ONE)], 20_000)
    feed.take([CommitRound(commit(1, ONE), ((),), 5.5)], 12_000)
    feed.take([SkipRound(2, "late")], 27_500)
    feed.take([SkipRound(3, "very late")], 2_000_000)
    counts = dict(zip((*history.SECONDS_BOUNDS, None), found.times.counts, strict=True))
    assert {bound: count for bound, count in counts.items() if count} == {2: 1, 10: 1, None: 1}
    assert found.times.total_s == 2 + 7.5 + 2000


def test_the_name_of_an_author_outlasts_its_membership() -> None:
    feed = Feed()
    found = feed.history
    feed.take([CommitRound(commit(0, ONE), ((),), 1.0)], 1000)
    found.name([(ONE, "attic"), (TWO, "gave nothing")])
    found.name([])
    assert found.names == {ONE: "attic"}
