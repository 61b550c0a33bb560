"""Rounds with summers, through the real machine: from the plan to the commit, with members that go,
lie or are late, and with a coordinator that goes on from its journal.
"""

import random
from dataclasses import replace
from typing import Any

import pytest

from coordinator.machine.events.acts import Rate, ordered
from coordinator.machine.events.effects import Chained, Dispute, Effect
from coordinator.machine.events.inputs import (
    Event,
    Heartbeat,
    Holding,
    NotHeld,
    PartsHeld,
    Restarted,
    Summed,
)
from coordinator.machine.machine import RunMachine
from coordinator.machine.screening import is_transient, screened
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.codec.chain import Void
from protocol.codec.commits import open_commit, sign_commit
from protocol.handshake import public_bytes
from protocol.ids import PeerId
from protocol.sums.asked import question_behind
from tests.benchmarks.scale import KEY
from tests.coordinator.machine.driver import RUN, of_kind, payload_digest
from tests.coordinator.machine.summing import (
    RESULT_BYTES,
    SummingDriver,
    added,
    held_parts,
    peers,
    result,
)
from tests.simulation.checkers import portrait

FIVE = peers(5)
TWELVE = peers(12)


def closing(driver: SummingDriver, round: int, members: list[PeerId]) -> list[Effect]:
    """All announce, and hold their parts; returns what followed."""
    for each in members:
        driver.announce(each, round)
    return driver.spread(round, members)


def test_a_round_is_added_and_its_commit_names_the_results_and_who_signed_them() -> None:
    driver = SummingDriver(*FIVE)
    (opened,) = driver.opened
    assert len(opened.plan) == driver.sums(0).ranges == 16
    assert all(len(row) == 2 for row in opened.plan)
    effects = closing(driver, 0, FIVE)
    assert not driver.commits
    asked = driver.asks(effects)
    assert sorted((who, each.number) for who, each in asked) == sorted(
        (who, number) for number, row in enumerate(opened.plan) for who in row
    )
    for _, question in asked:
        assert [each.author for each in question.authors] == FIVE
        assert [each.root for each in question.authors] == [payload_digest(a, 0) for a in FIVE]
        assert question.silent == ()
    driver.add(effects)
    (committed,) = driver.commits
    commit = committed.commit
    assert commit.sums is not None
    assert [each.digest for each in commit.sums.results] == [result(0, n) for n in range(16)]
    assert commit.learning_rate_bits == asked[0][1].learning_rate_bits
    assert committed.holders == tuple(map(tuple, map(sorted, opened.plan)))
    assert len(committed.trained) == len(commit.entries) == 5
    assert open_commit(sign_commit(commit, KEY), public_bytes(KEY)) == commit
    totals = driver.machine.state.totals
    assert (totals.payload_bytes, totals.result_bytes) == (500, 16 * RESULT_BYTES)
    added_by = {who: sum(who in row for row in opened.plan) for who in FIVE}
    assert {who: driver.member(who).work.ranges_added for who in FIVE} == added_by


def test_a_commit_has_the_question_again_also_of_an_author_without_samples() -> None:
    driver = SummingDriver(*FIVE)
    driver.announce(FIVE[0], 0, samples=0)
    for each in FIVE[1:]:
        driver.announce(each, 0)
    effects = driver.spread(0, FIVE)
    asked = {question.number: question for _, question in driver.asks(effects)}
    driver.add(effects)
    commit = driver.commits[0].commit
    assert commit.sums is not None
    for result_of_range in commit.sums.results:
        question = question_behind(commit, commit.sums, result_of_range)
        assert question == asked[result_of_range.number]
        assert min(each.samples for each in question.authors) == 1, "what no summer refuses"


def test_with_fewer_authors_or_no_two_candidates_every_payload_goes_to_everybody() -> None:
    few = SummingDriver(*FIVE, sums=6)
    few.exchange(0, *FIVE)
    assert few.opened[0].plan == ()
    assert few.commits[0].commit.sums is None
    none = SummingDriver(*FIVE, sums=0)
    assert [each.plan for each in none.opened] == [()]
    strange = SummingDriver(*FIVE, model={"type": "mystery", "config": {}})
    assert [each.plan for each in strange.opened] == [()]


def test_uplinks_are_measured_and_draw_the_next_summers() -> None:
    driver = SummingDriver(*FIVE)
    for each in FIVE:
        driver.announce(each, 0)
    driver.wait(200)
    driver.add(driver.spread(0, FIVE))
    rates = [driver.member(who).work.up_bit_s for who in FIVE]
    assert all(4000 <= rate <= 8000 for rate in rates), "two copies of 100 bytes in 200 ms, at most"
    driver.member(FIVE[0]).work.up_bit_s = 10**9
    driver.make_sums(*FIVE)
    plan = driver.opened[-1].plan
    assert all(FIVE[0] in row for row in plan), "half of all tasks, and each range once"


def test_a_summer_that_left_is_replaced_and_everybody_is_told() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    gone = driver.opened[0].plan[0][0]
    mine = [number for number, row in enumerate(driver.opened[0].plan) if gone in row]
    rest = [each for each in TWELVE if each != gone]
    assert sorted(number for _, number in added(driver.leave(gone))) == mine
    effects = closing(driver, 0, rest)
    assert {each for each, _ in driver.asks(effects)}.isdisjoint({gone})
    driver.add(effects)
    assert driver.authors() == rest
    sums = driver.commits[0].commit.sums
    assert sums is not None
    assert len(sums.results) == 16


def test_a_silent_summer_is_replaced_holds_nobody_up_for_long_and_is_given_less() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    lazy = driver.opened[0].plan[0][0]
    mine = [number for number, row in enumerate(driver.opened[0].plan) if lazy in row]
    for each in TWELVE:
        driver.announce(each, 0)
    assert not driver.asks(driver.spread(0, TWELVE, silent=[lazy]))
    effects = driver.wait(driver.sums(0).patience_ms)
    assert sorted(number for _, number in added(effects)) == mine
    effects = driver.spread(0, TWELVE, silent=[lazy])
    assert effects, "two hold each part: the set is fixed"
    driver.add(effects, silent=[lazy])
    (committed,) = driver.commits
    assert committed.commit.sums is not None
    assert len(committed.commit.sums.results) == 16
    assert driver.authors() == TWELVE
    assert driver.member(lazy).work.halved == 0, "nobody had to wait for its sum"


def test_one_that_holds_and_does_not_add_is_late_and_has_missed_a_round() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    lazy = driver.opened[0].plan[0][0]
    effects = closing(driver, 0, TWELVE)
    driver.add(effects, silent=[lazy])
    assert not driver.commits
    effects = driver.wait(driver.sums(0).patience_ms)
    assert lazy not in {who for who, _ in added(effects)}
    driver.add(effects)
    assert len(driver.commits) == 1
    assert driver.member(lazy).work.halved == 2
    driver.make_sums(*TWELVE)
    assert driver.member(lazy).work.halved <= 2


def test_unlike_sums_are_a_dispute_and_a_third_settles_the_range() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    effects = closing(driver, 0, TWELVE)
    (liar, question), *others = driver.asks(effects)
    driver.sign(liar, question, "wrong")
    said = [effect for who, asked in others for effect in driver.sign(who, asked)]
    (dispute,) = of_kind(Dispute, said)
    assert (dispute.round, dispute.number) == (0, question.number)
    assert (liar, result(0, question.number, "wrong")) in dispute.signed
    ((third, number),) = added(said)
    assert number == question.number
    driver.add(said)
    (committed,) = driver.commits
    sums = committed.commit.sums
    assert sums is not None
    assert sums.results[number].digest == result(0, number)
    assert third in committed.holders[number]
    assert [each for each in TWELVE if driver.member(each).work.halved] == [liar]


def test_a_range_that_nobody_settles_moves_nothing_and_without_any_the_round_is_skipped() -> None:
    driver = SummingDriver(*FIVE)
    effects = closing(driver, 0, FIVE)
    skipped = driver.asks(effects)[0][1].number
    told = [each for each in driver.asks(effects) if each[1].number != skipped]
    for who, question in told:
        driver.sign(who, question)
    last_ms = driver.now_ms + 5 * driver.sums(0).patience_ms
    while not driver.commits:
        driver.wait(100)
    assert driver.now_ms <= last_ms
    sums = driver.commits[0].commit.sums
    assert sums is not None
    assert skipped not in [each.number for each in sums.results]
    assert len(sums.results) == 15
    closing(driver, 1, FIVE)
    while not driver.skips:
        driver.wait(100)
    (skip,) = driver.skips
    assert (skip.round, skip.reason) == (1, "round 1 was skipped: its summers agreed on no sum")
    assert driver.machine.state.totals.samples_left_out > 0


def test_an_author_in_fewer_than_half_of_the_ranges_is_left_out_and_struck() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    short = next(each for each in TWELVE if sum(each in row for row in driver.opened[0].plan) <= 4)
    others = [each for each in TWELVE if each != short]
    closing(driver, 0, others)
    driver.announce(short, 0)
    assert driver.machine.undecided(0) is not None
    effects = driver.wait(3000)
    assert driver.machine.undecided(0).reached == "commit_by"  # type: ignore[union-attr]
    driver.add(effects)
    assert driver.authors() == others
    assert driver.member(short).strikes == 1
    assert driver.member(short).work.uncopied == 1


def test_an_author_that_some_ranges_lack_is_silent_there() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    short = next(each for each in TWELVE if sum(each in row for row in driver.opened[0].plan) <= 4)
    others = [each for each in TWELVE if each != short]
    for each in TWELVE:
        driver.announce(each, 0)
    driver.spread(0, others)
    for who in sorted({who for row in driver.sums(0).plan() for who in row} - {short}):
        driver.parts(who, 0, [short], ranges=2**12 - 1)
    effects = driver.wait(3000)
    driver.add(effects)
    commit = driver.commits[0].commit
    assert driver.authors() == TWELVE
    assert commit.sums is not None
    place = TWELVE.index(short)
    silent = [each.number for each in commit.sums.results if each.silent == (place,)]
    own = [n for n, row in enumerate(driver.opened[0].plan) if short in row]
    assert set(silent) <= {12, 13, 14, 15}
    assert silent
    assert own is not None


def test_while_summers_add_nobody_announces_any_more_but_may_prove_itself_punctual() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    late = TWELVE[-1]
    driver.mute(late)
    others = TWELVE[:-1]
    effects = closing(driver, 0, others)
    assert driver.asks(effects), "nobody waits for a member at its strike limit"
    before = driver.member(late).strikes
    driver.announce(late, 0)
    assert driver.member(late).strikes == before - 1
    driver.announce(late, 0)
    assert driver.member(late).strikes == before - 1
    driver.add(effects)
    assert driver.authors() == others


def test_another_learning_rate_while_summers_add_asks_them_again() -> None:
    driver = SummingDriver(*FIVE, schedule={"warmup_steps": 0})
    effects = closing(driver, 0, FIVE)
    head = driver.machine.state.operator.head
    again = driver.tell(ordered(Rate(0.5), 1_700_000_000, head))
    driver.add(effects)
    assert not driver.commits, "signed under the old question"
    old, new = (driver.asks(each)[0][1].learning_rate_bits for each in (effects, again))
    assert old != new
    driver.add(again)
    assert driver.commits[0].commit.learning_rate_bits == new


def test_a_void_result_takes_no_samples_back() -> None:
    driver = SummingDriver(*FIVE)
    driver.add(closing(driver, 0, FIVE))
    counted = driver.machine.state.totals.samples_counted
    digest = result(0, 3)
    for each in FIVE:
        driver.tell(NotHeld(each, 0, (digest,)))
    effects = driver.wait(60_000)
    voids = [each.entry for each in of_kind(Chained, effects) if isinstance(each.entry, Void)]
    assert [each.digest for each in voids] == [digest]
    assert driver.machine.state.totals.samples_counted == counted


def test_a_summer_that_comes_back_is_asked_again_what_it_has_not_answered() -> None:
    driver = SummingDriver(*TWELVE, sums=3)
    effects = closing(driver, 0, TWELVE)
    who, question = driver.asks(effects)[0]
    driver.part(who)
    driver.hello(who)
    again = driver.ready(who)
    mine = [each for other, each in driver.asks(effects) if other == who]
    assert driver.asks(again) == [(who, each) for each in mine]
    for each in mine:
        driver.sign(who, each)
    driver.hello(who)
    assert driver.asks(driver.ready(who)) == []
    assert question in mine


def test_receipts_for_whole_payloads_and_of_late_summers_are_no_news() -> None:
    driver = SummingDriver(*FIVE)
    for each in FIVE:
        driver.announce(each, 0)
    whole = Holding(FIVE[0], 0, (payload_digest(FIVE[1], 0),))
    assert screened(whole, driver.machine) == Heartbeat(FIVE[0])
    part = PartsHeld(FIVE[0], 0, (held_parts(FIVE[1], 0),))
    new = screened(part, driver.machine)
    assert isinstance(new, PartsHeld)
    assert screened(new, driver.machine) == new
    driver.tell(part)
    assert screened(part, driver.machine) == Heartbeat(FIVE[0])
    other = PartsHeld(FIVE[0], 0, (held_parts(FIVE[2], 0),))
    effects = driver.spread(0, FIVE)
    assert screened(other, driver.machine) == Heartbeat(FIVE[0]), "the set is fixed"
    who, asked = driver.asks(effects)[0]
    said = Summed(who, 0, asked.number, result(0, 0), 1, asked.learning_rate_bits, b"", b"")
    assert screened(said, driver.machine) == said
    driver.tell(said)
    for again in (said, replace(said, result_bytes=2), replace(said, learning_rate_bits=3)):
        assert screened(again, driver.machine) == Heartbeat(who)


class Journalled:
    """A machine and its journal, as the sequencer keeps it; now and then a replay or a snapshot
    takes its place.
    """

    def __init__(self, number: int) -> None:
        self.chance, self.hostile = random.Random(number), set[PeerId]()
        sections: dict[str, Any] = {
            "rounds": {"overlap": number % 2, "compute_ms": 3000, "exchange_ms": 9000},
            "membership": {"start_members": 9, "lease_ms": 600_000},
        }
        self.driver = SummingDriver(sums=4, **sections)
        self.journal: list[tuple[int, Event]] = []
        self.said: list[Effect] = []
        self.take = self.driver.tell
        self.driver.tell = self.tell  # type: ignore[method-assign]
        self.crowd = self.chance.sample(TWELVE, 9)
        self.hostile = set(self.crowd[:2])
        self.driver.join(*self.crowd)

    def tell(self, event: Event) -> list[Effect]:
        driver = self.driver
        event = screened(event, driver.machine)
        effects = self.take(event)
        if not is_transient(event, effects):
            self.journal.append((driver.now_ms, event))
            self.said += effects
        return effects

    def restart(self) -> None:
        driver = self.driver
        machine, said = RunMachine(driver.machine.spec, RUN), list[Effect]()
        for at_ms, event in self.journal:
            said += machine.handle(event, at_ms)
        assert repr(said) == repr(self.said)
        assert portrait(machine, with_leases=False) == portrait(driver.machine, with_leases=False)
        snapshot = decode_state(encode_state(driver.machine.state))
        assert durable_part(snapshot) == durable_part(driver.machine.state)
        fresh = RunMachine(driver.machine.spec, RUN)
        fresh.resume(snapshot)
        driver.machine = self.chance.choice((machine, fresh))
        driver.now_ms += self.chance.choice((0, 1, 4000))
        driver.tell(Restarted())

    def play(self) -> None:
        """One round: members announce, hold, add, die and lie at random."""
        driver, chance = self.driver, self.chance
        round = driver.machine.state.undecided[0].round
        dead = set(chance.sample(self.crowd, chance.choice((0, 0, 1))))
        for who in chance.sample(self.crowd, len(self.crowd)):
            driver.announce(who, round)
        last_ms = driver.now_ms + 100_000
        answered = set[tuple[PeerId, int]]()
        for who in dead:
            driver.part(who)
        while driver.machine.undecided(round) is not None:
            assert driver.now_ms < last_ms, "every round ends"
            self.some_hold(round, dead)
            for who, question in driver.asks(self.said):
                if question.round == round and (who, question.number) not in answered:
                    answered.add((who, question.number))
                    if who not in dead:
                        driver.sign(who, question, "wrong" if who in self.hostile else "right")
            if chance.random() < 0.1:
                self.restart()
            driver.wait(chance.choice((1, 500, 3000)))
        for who in dead:
            driver.join(who)

    def some_hold(self, round: int, dead: set[PeerId]) -> None:
        undecided = self.driver.machine.undecided(round)
        if undecided is None or undecided.sums is None or undecided.is_closed:
            return
        for who in sorted({who for row in undecided.sums.plan() for who in row} - dead):
            authors = [each for each in self.crowd if each != who and self.chance.random() < 0.7]
            self.driver.parts(who, round, authors)


@pytest.mark.parametrize("number", range(12))
def test_any_round_ends_and_a_replay_or_a_snapshot_is_the_same_machine(number: int) -> None:
    found = Journalled(number)
    for _ in range(4):
        found.play()
    found.restart()
    driver = found.driver
    assert len(driver.commits) >= 3
    for committed in driver.commits:
        sums = committed.commit.sums
        assert sums is not None
        for each, signers in zip(sums.results, committed.holders, strict=True):
            if each.digest != result(committed.commit.round, each.number):
                assert set(signers) <= found.hostile
