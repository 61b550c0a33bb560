"""Replicas that differ: told to resync once, muted, refused. The replay of the log decides level
votes.
"""

import pytest

from coordinator.machine.events.effects import Admit, AskResync, Effect, Evict, RecordDigest, Refuse
from coordinator.machine.events.inputs import Ready, Restarted
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.records import REFUSED_MS, WRONG_RESULTS
from coordinator.state_snapshot import decode_state, encode_state
from protocol.ids import PeerId
from tests.coordinator.machine.driver import RUN, A, B, C, D, Driver, E, of_kind, state_digest

WRONG = 666


def asked(effects: list[Effect]) -> list[PeerId]:
    return [effect.peer for effect in of_kind(AskResync, effects)]


def a_round(driver: Driver, *peers: PeerId, wrong: dict[PeerId, int] | None = None) -> list[Effect]:
    """The newest round is exchanged and applied by `peers`; those in `wrong` come to another
    digest.
    """
    round, effects = driver.machine.state.undecided[-1].round, list[Effect]()
    driver.exchange(round, *peers)
    for peer in peers:
        effects += driver.apply(peer, round, (wrong or {}).get(peer))
    return effects


def muted(driver: Driver) -> list[PeerId]:
    """Members that are muted in the newest round."""
    undecided = driver.machine.state.undecided[-1]
    return [peer for peer, assignment in undecided.assignments.items() if assignment.muted]


# ---- the record


def test_a_digest_is_recorded_when_it_has_won_and_when_all_have_reported() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B, C)
    assert driver.apply(A, 0) == []
    assert driver.apply(B, 0) == [RecordDigest(0, state_digest(0), 2, 0, b"")]
    assert driver.apply(C, 0) == [RecordDigest(0, state_digest(0), 3, 0, b"")]
    assert driver.machine.state.verdicts.tally.rounds_disputed == 0


def test_a_crowd_that_joins_later_cannot_turn_the_record_over() -> None:
    driver = Driver(A, B)
    a_round(driver, A, B)
    driver.hello(C)
    driver.hello(D)
    driver.hello(E)
    effects = [effect for peer in (C, D, E) for effect in driver.ready(peer, digest=WRONG)]
    assert asked(effects) == [C, D, E]
    assert {effect.state_digest for effect in of_kind(RecordDigest, effects)} == {state_digest(0)}


def test_the_report_of_one_node_is_withdrawn_when_another_contradicts_it() -> None:
    driver = Driver(A, rounds={"quorum": 1, "copies_min": 0})
    assert a_round(driver, A, wrong={A: WRONG})[-1] == RecordDigest(0, WRONG, 1, 0, b"")
    driver.hello(B)
    effects = driver.ready(B)
    assert of_kind(RecordDigest, effects) == [RecordDigest(0, 0, 0, 2, b"")]
    assert asked(effects) == [A, B]


def test_digests_of_a_round_that_is_not_committed_yet_are_ignored() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    assert driver.apply(A, 1) == []
    assert driver.member(A).round == -1


def test_an_old_digest_does_not_replace_the_recorded_majority() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    for _ in range(70):
        a_round(driver, A, B)
    assert driver.apply(A, 0, digest=WRONG) == []
    assert driver.machine.state.verdicts.tally.last == state_digest(69)


# ---- outvoted


def test_a_dissenter_is_told_once_and_set_back() -> None:
    driver = Driver(A, B, C)
    effects = a_round(driver, A, B, C, wrong={C: WRONG})
    assert of_kind(AskResync, effects) == [
        AskResync(C, 0, "state after round 0 differs from the majority's", 1)
    ]
    assert driver.member(C).state == "catching up"
    assert driver.machine.state.verdicts.tally.rounds_disputed == 1


def test_a_dissenter_that_reports_first_is_told_once_it_cannot_win() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B, C)
    assert driver.apply(C, 0, digest=WRONG) == []
    assert driver.apply(A, 0) == []  # B may still side with either
    effects = driver.apply(B, 0)
    assert asked(effects) == [C]
    assert of_kind(RecordDigest, effects) == [RecordDigest(0, state_digest(0), 3, 1, b"")]


def test_a_report_from_before_the_resync_is_not_counted_as_a_second_offence() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.exchange(1, A, B)
    for peer in (A, B):
        driver.apply(peer, 1)
    assert driver.apply(C, 1, digest=WRONG) == []  # it was on its way
    assert driver.machine.members.get(C) is not None


def test_a_request_that_was_lost_with_its_session_is_made_again_and_counts_once() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.part(C)
    for _ in range(5):
        driver.hello(C)
        effects = driver.ready(C, digest=WRONG, obeyed=False)
        assert asked(effects) == [C]
        assert of_kind(Evict, effects) == []
    driver.ready(C)
    assert driver.member(C).state == "ready"


def test_a_request_that_was_obeyed_is_not_made_again_to_the_nodes_next_process() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.ready(C)
    driver.hello(C)
    assert asked(driver.ready(C, obeyed=False)) == []
    assert driver.member(C).state == "ready"


def test_a_node_that_has_started_over_is_muted_until_a_later_state_agrees() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.ready(C)
    a_round(driver, A, B)  # opened before it was ready
    assert muted(driver) == [C]
    reason = driver.machine.state.undecided[-1].assignments[C].reason
    assert "its state after round 0 was wrong" in reason
    driver.apply(C, 1)
    a_round(driver, A, B, C)
    assert muted(driver) == []


def test_a_node_that_differs_twice_in_a_row_is_evicted_and_its_key_is_refused() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    effects = driver.ready(C, digest=WRONG)
    [evict] = of_kind(Evict, effects)
    assert (evict.peer, evict.wrong_results) == (C, True)
    assert evict.reason.startswith(
        f"{WRONG_RESULTS}: wrong states twice in a row, the last after round 0"
    )
    assert driver.machine.members.get(C) is None
    [refuse] = of_kind(Refuse, driver.hello(C))
    assert refuse.wrong_results
    assert refuse.reason.startswith(f"{WRONG_RESULTS}: its key is refused for 60 more minutes")
    a_round(driver, A, B)  # the others go on


def test_a_round_that_counts_its_payload_and_agrees_clears_the_record() -> None:
    driver = Driver(A, B, C)
    for _ in range(5):
        a_round(driver, A, B, C, wrong={C: WRONG})
        driver.ready(C)
        a_round(driver, A, B)
        driver.apply(C, driver.machine.state.head_round)
        a_round(driver, A, B, C)  # unmuted by the one before
        a_round(driver, A, B, C)
    assert driver.machine.members.get(C) is not None


def test_leaving_and_coming_back_clears_nothing() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.leave(C)
    driver.hello(C)
    assert asked(driver.ready(C, digest=WRONG, obeyed=False)) == [C]
    assert [effect.peer for effect in of_kind(Evict, driver.ready(C, digest=WRONG))] == [C]


def test_a_refused_node_has_one_chance_after_its_time() -> None:
    driver = Driver(A, B, C, membership={"lease_ms": 2 * REFUSED_MS})
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.ready(C, digest=WRONG)
    driver.now_ms += REFUSED_MS - 1
    assert of_kind(Refuse, driver.hello(C))
    driver.now_ms += 1
    assert of_kind(Admit, driver.hello(C))
    assert of_kind(Evict, driver.ready(C, digest=WRONG))


def test_samples_of_an_evicted_member_are_left_out_and_no_round_waits_for_it() -> None:
    driver = Driver(A, B, C, rounds={"overlap": 1})
    driver.exchange(0, A, B, C)
    driver.exchange(1, A, B, C)
    leased = {
        asked.peer: sum(share.count for share in asked.shares)
        for asked in driver.opened[-1].assignments
    }
    for round in (0, 1):  # two states in a row, and round 2 is under way
        driver.apply(A, round)
        driver.apply(B, round)
        driver.apply(C, round, digest=WRONG)
        driver.ready(C, digest=WRONG)
    assert driver.machine.members.get(C) is None
    assert driver.machine.state.totals.samples_left_out == leased[C] > 0
    driver.exchange(2, A, B)
    assert [commit.commit.round for commit in driver.commits] == [0, 1, 2]


def test_records_survive_a_restart_and_a_snapshot() -> None:
    driver = Driver(A, B, C)
    a_round(driver, A, B, C, wrong={C: WRONG})
    driver.ready(C, digest=WRONG)
    twin = RunMachine(driver.machine.spec, RUN)
    twin.resume(decode_state(encode_state(driver.machine.state)))
    assert twin.state.verdicts == driver.machine.state.verdicts
    driver.machine = twin
    driver.tell(Restarted())
    assert of_kind(Refuse, driver.hello(C))


# ---- level votes


def level() -> Driver:
    """A is right, B is wrong, and there is no other node."""
    driver = Driver(A, B)
    effects = a_round(driver, A, B, wrong={B: WRONG})
    assert asked(effects) == [A, B]
    assert {effect.reason for effect in of_kind(AskResync, effects)} == {
        "votes of 2 nodes on the state after round 0 are level: the replay of the log decides"
    }
    return driver


def replay(driver: Driver, peer: PeerId, digest: int) -> list[Effect]:
    """The peer starts over, says what it comes to after round 0, and is ready."""
    return driver.apply(peer, 0, digest) + driver.ready(peer, digest=digest)


def test_a_vote_is_level_only_when_no_voter_is_awaited() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B, C)
    driver.apply(A, 0)
    assert asked(driver.apply(B, 0, digest=WRONG)) == []
    assert asked(driver.apply(C, 0)) == [B]


def test_the_node_whose_digest_changes_in_the_replay_is_blamed_and_the_other_is_not() -> None:
    driver = level()
    driver.wait(3000)  # nothing can be trained meanwhile
    assert driver.machine.state.undecided == []
    assert "the replay of the log decides" in driver.machine.state.reason
    assert of_kind(RecordDigest, replay(driver, A, state_digest(0))) == []
    effects = replay(driver, B, state_digest(0))
    assert of_kind(RecordDigest, effects)[0] == RecordDigest(0, state_digest(0), 2, 0, b"")
    assert of_kind(Evict, effects) == []
    assert driver.machine.state.undecided  # both train again
    records = driver.machine.state.verdicts.records
    assert (records[A].differed, records[A].muted) == (0, False)
    assert (records[B].differed, records[B].muted) == (1, True)


def test_a_node_that_arrives_at_a_third_digest_is_refused() -> None:
    driver = level()
    replay(driver, A, state_digest(0))
    effects = replay(driver, B, WRONG + 1)
    [evict] = of_kind(Evict, effects)
    assert evict.peer == B
    assert driver.member(A).state == "ready"


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_two_nodes_that_stand_by_their_digests_are_held_and_neither_is_refused(
    order: tuple[PeerId, PeerId],
) -> None:
    driver = level()
    effects = [
        effect
        for peer in order
        for effect in replay(driver, peer, state_digest(0) if peer == A else WRONG)
    ]
    assert (asked(effects), of_kind(Evict, effects)) == ([], [])
    driver.wait(3000)
    assert driver.machine.state.undecided == []
    assert "differ even after a replay: waits for a further node" in driver.machine.state.reason


def test_a_further_node_breaks_the_tie_of_two_that_stand_by_their_digest() -> None:
    driver = level()
    replay(driver, A, state_digest(0))
    replay(driver, B, WRONG)
    driver.hello(C)
    effects = driver.ready(C)
    assert asked(effects) == [B]
    assert [assignment.peer for assignment in driver.opened[-1].assignments] == [A, C]
    assert [effect.peer for effect in of_kind(Evict, driver.ready(B, digest=WRONG))] == [B]
    assert driver.member(A).state == "ready"


def test_one_of_two_held_nodes_trains_again_when_the_other_leaves() -> None:
    driver = Driver(A, B, rounds={"quorum": 1})
    a_round(driver, A, B, wrong={B: WRONG})
    for peer, digest in ((A, state_digest(0)), (B, WRONG)):
        replay(driver, peer, digest)
    driver.leave(B)
    driver.wait(3000)
    assert list(driver.machine.state.undecided[-1].assignments) == [A]


def test_a_node_that_jumps_over_the_disputed_round_is_judged_by_the_next() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    driver.exchange(0, A, B)
    driver.exchange(1, A, B)
    driver.apply(A, 0)
    assert asked(driver.apply(B, 0, digest=WRONG)) == [A, B]
    effects = driver.ready(A) + driver.ready(B)  # both from a snapshot of round 1
    assert (asked(effects), of_kind(Evict, effects)) == ([], [])
    assert driver.machine.state.verdicts.held == {}
    driver.wait(3000)
    assert driver.machine.state.undecided


def test_three_of_four_with_three_digests_all_replay_and_the_steady_are_right() -> None:
    driver = Driver(A, B, C)
    effects = a_round(driver, A, B, C, wrong={B: WRONG, C: WRONG + 1})
    assert asked(effects) == [A, B, C]
    effects = [effect for peer in (C, B, A) for effect in replay(driver, peer, state_digest(0))]
    assert of_kind(Evict, effects) == []
    records = driver.machine.state.verdicts.records
    assert sorted(records[peer].differed for peer in (A, B, C)) == [0, 1, 1]
    assert driver.machine.state.verdicts.held == {}


def test_machines_that_contradict_themselves_end_without_a_verdict_and_without_a_loop() -> None:
    driver = level()
    effects = replay(driver, A, 1) + replay(driver, B, 2)
    assert (asked(effects), of_kind(Evict, effects)) == ([], [])
    assert driver.machine.state.verdicts.held.keys() == {A, B}


def test_genesis_is_disputed_like_any_other_state() -> None:
    driver = Driver()
    driver.hello(A)
    driver.hello(B)
    driver.ready(A)
    assert asked(driver.ready(B, digest=WRONG)) == [A, B]
    driver.ready(A)
    driver.ready(B)
    assert driver.machine.state.verdicts.held == {}
    assert driver.member(B).state == "ready"


def test_a_member_that_lapses_in_its_replay_is_not_waited_for() -> None:
    driver = level()
    replay(driver, A, state_digest(0))
    driver.leave(B)
    driver.join(C)
    assert driver.machine.state.verdicts.held == {}
    assert [assignment.peer for assignment in driver.opened[-1].assignments] == [A, C]


def test_a_ready_from_before_the_resync_is_no_report() -> None:
    driver = level()
    effects = driver.tell(Ready(A, 0, state_digest(0), 0))
    assert asked(effects) == [A]
    assert driver.machine.state.verdicts.tally.by_round[0].before.keys() == {A, B}
    assert driver.member(A).state == "catching up"
