"""A run that anyone may join: free keys decide nothing, silence is cheap.

A, B and C are vouched for, D and E are not. Strangers are as many fresh keys as a test likes.
"""

from typing import Any

from coordinator.machine.events.acts import Salted, Vouched
from coordinator.machine.events.effects import (
    Admit,
    AskResync,
    Evict,
    Refuse,
    SkipRound,
    TellMembers,
)
from coordinator.machine.events.inputs import Applied, Holding
from coordinator.machine.rules.closing import LEAST_PART, SOON_PART, fresh_max
from coordinator.machine.state.membership import UNCONFIRMED_MAX
from coordinator.machine.state.standing import COUNTED_ROUNDS, WITNESSES, Standing, half
from coordinator.state_snapshot import decode_state, encode_state
from protocol.ids import PeerId, sha256
from tests.coordinator.machine.driver import (
    A,
    B,
    C,
    D,
    Driver,
    E,
    of_kind,
    state_digest,
)

LEAST_MS = 1000 // LEAST_PART
STRANGERS = [PeerId(f"{number:032x}") for number in range(100, 160)]


def public(*peers: PeerId, vouched: tuple[PeerId, ...] = (A, B, C), **sections: Any) -> Driver:
    """A public run; the peers that are vouched for come first."""
    sections["membership"] = {
        "trust": "public",
        "start_members": max(1, len({*peers} & {*vouched})),
        **sections.get("membership", {}),
    }
    driver = Driver(**sections)
    driver.tell(Salted(b"s" * 32))
    for peer in vouched:
        driver.tell(Vouched(peer))
    driver.join(*peers)
    return driver


def newest(driver: Driver) -> int:
    return driver.machine.state.undecided[-1].round


def play(driver: Driver, *peers: PeerId) -> int:
    """One round in which exactly these exchange; returns its number."""
    round = newest(driver)
    driver.wait(LEAST_MS)
    driver.exchange(round, *peers)
    return round


# ---- standing


def test_standing_is_earned_by_committed_payloads_or_given_and_outlives_the_session() -> None:
    driver = public(A, B, D)
    assert [driver.machine.members.standing.word(peer) for peer in (A, D)] == ["vouched", "fresh"]
    play(driver, A, B)  # it was opened before D came
    for _ in range(COUNTED_ROUNDS):
        assert driver.machine.members.standing.word(D) == "fresh"
        play(driver, A, B, D)
    assert driver.authors() == [A, B, D]
    assert driver.machine.members.standing.word(D) == "counted"
    driver.leave(D)
    restored = decode_state(encode_state(driver.machine.state))
    assert restored.members.standing.word(D) == "counted"
    assert restored.members.standing.salt == b"s" * 32


def test_only_the_first_secret_counts() -> None:
    driver = public()
    driver.tell(Salted(b"t" * 32))
    assert driver.machine.members.standing.salt == b"s" * 32


def test_free_keys_push_no_earned_standing_out() -> None:
    standing = Standing(vouched={A})
    for _ in range(COUNTED_ROUNDS):
        standing.credit(B)
    for number in range(5000):
        standing.credit(PeerId(f"{number:032x}"))
    assert (standing.word(A), standing.word(B)) == ("vouched", "counted")
    assert len(standing.payloads) == 4096


# ---- which payload counts (F2, F12, F18)


def test_receipts_of_free_keys_make_no_payload_available() -> None:
    """Two keys had a payload committed that nobody had."""
    driver = public(A, B, D, E)
    round = newest(driver)
    driver.announce(D, round)
    driver.announce(E, round)
    driver.hold(E, round, [D])
    driver.hold(D, round, [E])
    driver.exchange(round, A, B)
    driver.wait(3000)
    assert driver.authors() == [A, B]


def test_a_payload_of_a_free_key_counts_once_half_of_its_witnesses_hold_it() -> None:
    driver = public(A, B, C, D)
    round = newest(driver)
    driver.announce(D, round)
    driver.hold(A, round, [D])
    driver.exchange(round, A, B, C)
    driver.wait(LEAST_MS)
    assert driver.authors() == [A, B, C], "one witness of three"
    round = newest(driver)
    driver.announce(D, round)
    driver.hold(A, round, [D])
    driver.hold(B, round, [D])
    driver.exchange(round, A, B, C)
    driver.wait(LEAST_MS)
    assert driver.authors() == [A, B, C, D], "two witnesses of three"


def test_one_lying_witness_of_several_makes_nothing_available() -> None:
    nowhere = sha256(b"nobody has this")
    driver = public(A, B, C, D)
    round = newest(driver)
    driver.announce(D, round, digest=nowhere)
    driver.tell(Holding(A, round, (nowhere,)))
    driver.exchange(round, A, B, C)
    driver.wait(3000)
    assert driver.authors() == [A, B, C]


def test_witnesses_are_drawn_by_a_secret_and_anew_for_each_payload() -> None:
    keys = STRANGERS[:40]
    one, other = Standing(salt=b"one"), Standing(salt=b"other")
    digests = [sha256(bytes([number])) for number in range(50)]
    drawn = [one.witnesses(3, digest, keys) for digest in digests]
    assert {len(each) for each in drawn} == {WITNESSES}
    assert set().union(*drawn) == set(keys)
    assert drawn != [other.witnesses(3, digest, keys) for digest in digests]
    assert [half(count) for count in (0, 1, 2, 3, 9)] == [0, 1, 1, 2, 5]


def test_free_keys_contribute_in_bounded_number() -> None:
    driver = public(A, B, C, D, E, *STRANGERS[:10])
    play(driver, A, B, C)  # it was opened before the others came
    round = newest(driver)
    asked = set(driver.opened[-1].assignments)
    fresh = [each.peer for each in asked if each.peer not in (A, B, C)]
    assert len(fresh) == fresh_max(3) == 1
    for peer in fresh:
        driver.announce(peer, round)
        for witness in (A, B, C):
            driver.hold(witness, round, [peer])
    driver.exchange(round, A, B, C)
    driver.wait(LEAST_MS)
    assert len(driver.authors()) == 4


# ---- steps, quorum, length of a round (F4)


def test_free_keys_alone_make_no_step() -> None:
    driver = public(D, E, *STRANGERS)
    driver.wait(60_000)
    assert driver.opened == []
    assert "members with standing: 0 of 2 are ready" in driver.machine.state.reason


def test_the_quorum_is_one_of_members_with_standing() -> None:
    driver = public(A, B, D)
    driver.make_round(A, B)
    driver.wait(LEAST_MS)
    round = newest(driver)
    driver.exchange(round, A, D)
    driver.hold(B, round, [A, D])
    driver.wait(3000)
    lack = "1 of 2 contributors has standing; 2 are needed"
    assert driver.skips[0] == SkipRound(round, f"round {round} was skipped: {lack}")


def test_members_that_agree_with_each_other_make_no_hundred_steps_a_second() -> None:
    driver = public(A, B)
    for _ in range(40):
        driver.exchange(newest(driver), A, B)
        driver.wait(100)
    assert 10 <= len(driver.commits) <= 4000 // LEAST_MS


# ---- waiting (F5, F7, F17)


def test_nobody_waits_for_a_free_key() -> None:
    driver = public(A, B, D, *STRANGERS)
    for _ in range(10):
        play(driver, A, B)
    assert len(driver.commits) == 10
    assert driver.now_ms == 1_000_000 + 10 * LEAST_MS


def test_free_keys_that_fill_the_run_take_no_samples_from_the_others() -> None:
    quiet, crowded = public(A, B), public(A, B, *STRANGERS)
    for driver in (quiet, crowded):
        for _ in range(5):
            play(driver, A, B)
    samples = [
        {
            each.peer: sum(share.count for share in each.shares)
            for each in driver.opened[-1].assignments
        }
        for driver in (quiet, crowded)
    ]
    assert {peer: samples[1][peer] for peer in (A, B)} == samples[0]


def test_a_free_key_sets_no_pace() -> None:
    driver = public(A, B, D, rounds={"stretch": 4})
    for _ in range(8):
        round = newest(driver)
        driver.announce(D, round, digest=sha256(b"nobody has this"))
        play(driver, A, B)
    assert driver.machine.state.pace.slot.exchange_ms <= 1500


def test_speed_is_measured_here_and_booked_with_a_committed_payload() -> None:
    driver = public(A, B, D)
    round = newest(driver)
    driver.wait(500)
    for peer in (A, B):
        driver.announce(peer, round, compute_ms=1)
    driver.announce(D, round, compute_ms=1)
    driver.hold(A, round, [B])
    driver.hold(B, round, [A])
    assert driver.member(A).work.speed == 8 * 1000 * 1000 // 500
    assert (driver.member(D).work.speed, driver.member(D).work.samples) == (0, 0)


def test_work_that_takes_no_time_brings_no_more_than_twice_the_usual_samples() -> None:
    """A key that has earned standing and sends noise at once had most of the samples, and their
    weight.
    """
    driver = public(A, B, C, D, vouched=(A, B), rounds={"batch_samples_max": 4096})
    for peer in (C, D):
        driver.machine.members.standing.payloads[peer] = COUNTED_ROUNDS
    for peer, speed in ((A, 4_000_000), (B, 8_000), (C, 10_000), (D, 10**12)):
        driver.member(peer).work.speed = speed
    play(driver, A, B, C, D)
    play(driver, A, B, C, D)
    newest_shares = driver.opened[-1].assignments
    samples = {each.peer: sum(share.count for share in each.shares) for each in newest_shares}
    assert samples[A] > 50 * samples[B], "the operator vouches for its speed"
    assert samples[D] <= 2 * samples[C]


def test_a_free_key_does_not_state_the_loss_of_the_run() -> None:
    driver = public(A, B, C, D)
    play(driver, A, B, C)  # it was opened before D came
    round = newest(driver)
    driver.announce(D, round, loss=1e308)
    for witness in (A, B, C):
        driver.hold(witness, round, [D])
    driver.exchange(round, A, B, C)
    driver.wait(LEAST_MS)
    assert driver.authors() == [A, B, C, D]
    assert driver.machine.state.loss == 2.0


def test_ghosts_stand_in_no_list_until_they_are_ready() -> None:
    driver = public(A, B)
    for ghost in STRANGERS:
        assert of_kind(TellMembers, driver.hello(ghost)) == []
    assert [member.peer for member in driver.machine.members if member.listed] == [A, B]
    assert of_kind(TellMembers, driver.ready(STRANGERS[0])) == [TellMembers((STRANGERS[0],))]
    assert driver.member(STRANGERS[0]).listed


def test_a_ghost_loses_its_place_in_a_full_run_and_a_vouched_member_needs_not_wait() -> None:
    driver = public(A, B, membership={"members_max": 4, "lease_ms": 60_000})
    driver.hello(D)
    driver.hello(STRANGERS[0])
    refused = driver.hello(E)
    assert refused == [Refuse(E, "the run is full: 4 members", retry=True)]
    effects = driver.hello(C)
    assert [effect.peer for effect in of_kind(Evict, effects)] == [D]
    assert Admit(C) in effects


def test_a_member_that_comes_nearer_to_the_head_keeps_its_place_in_a_full_run() -> None:
    driver = Driver(A, B, membership={"members_max": 4, "start_members": 2, "lease_ms": 3000})
    play(driver, A, B)
    driver.hello(C)
    driver.hello(D)
    for number in range(21):
        driver.wait(2900)
        if number == 10:
            driver.tell(Applied(C, 0, state_digest(0), b""))
        for peer in (A, B, C, D):
            driver.machine.members.renew(peer, driver.now_ms)
    effects = driver.hello(E)
    assert [effect.peer for effect in of_kind(Evict, effects)] == [D]


# ---- digests (F3)


def test_free_keys_that_come_first_say_nothing_about_genesis() -> None:
    driver = public(vouched=(A, B))
    for liar in (D, E):
        driver.hello(liar)
        driver.ready(liar, digest=0xBAD)
    for honest in (A, B):
        driver.hello(honest)
        assert of_kind(AskResync, driver.ready(honest)) == []
    assert of_kind(Evict, driver.effects) == []
    assert driver.opened


def test_vouched_liars_that_come_first_blame_nobody_at_genesis() -> None:
    driver = public(vouched=(A, B, C, D, E))
    for liar in (D, E):
        driver.hello(liar)
        driver.ready(liar, digest=0xBAD)
    for honest in (A, B, C):
        driver.hello(honest)
        assert of_kind(AskResync, driver.ready(honest)) == []
    assert not driver.machine.state.verdicts.held


def test_most_of_those_vouched_for_tell_the_others_at_genesis() -> None:
    driver = public(A, B, vouched=(A, B, C))
    driver.hello(C)
    assert [each.peer for each in of_kind(AskResync, driver.ready(C, digest=0xBAD))] == [C]


def test_a_majority_of_free_keys_evicts_nobody_and_holds_nobody_up() -> None:
    driver = public(A, B, *STRANGERS[:9])
    for _ in range(4):
        round = play(driver, A, B)
        for liar in STRANGERS[:9]:
            driver.apply(liar, round, 0xBAD)
        for honest in (A, B):
            driver.apply(honest, round)
    assert len(driver.commits) == 4
    assert not [effect for effect in of_kind(Evict, driver.effects) if effect.peer in (A, B)]
    assert not [effect for effect in of_kind(AskResync, driver.effects) if effect.peer in (A, B)]
    assert driver.machine.state.verdicts.tally.agreed


def test_a_vouched_member_is_not_blamed_on_the_word_of_counted_ones() -> None:
    driver = public(A, B, D, vouched=(A, B))
    driver.machine.members.standing.payloads |= dict.fromkeys((D, E, C), COUNTED_ROUNDS)
    driver.join(E, C)
    for _ in range(3):
        round = play(driver, A, B, C, D, E)
        for liar in (C, D, E):
            driver.apply(liar, round, 0xBAD)
        for honest in (A, B):
            driver.apply(honest, round)
    told = [*of_kind(Evict, driver.effects), *of_kind(AskResync, driver.effects)]
    assert not [effect for effect in told if effect.peer in (A, B)]


def test_a_free_key_whose_state_is_wrong_is_told_so() -> None:
    driver = public(A, B, D)
    round = play(driver, A, B)
    for honest in (A, B):
        driver.apply(honest, round)
    effects = driver.apply(D, round, 0xBAD)
    assert [effect.peer for effect in of_kind(AskResync, effects)] == [D]


# ---- in every run


def test_genesis_evicts_nobody_in_any_run() -> None:
    """The first to come decide that vote: a member that differs is held back, not refused."""
    driver = Driver()
    for liar in (A, B):
        driver.hello(liar)
        driver.ready(liar, digest=0xBAD)
    driver.hello(C)
    assert [each.peer for each in of_kind(AskResync, driver.ready(C))] == [C]
    for _ in range(3):
        effects = driver.ready(C)
        assert of_kind(AskResync, effects) + of_kind(Evict, effects) == []
    assert "first state differs" in driver.machine.state.verdicts.held[C]


def test_the_word_on_digests_recovers_when_a_liar_is_gone() -> None:
    driver = Driver(A, B, C)
    tally = driver.machine.state.verdicts.tally
    round = play(driver, A, B, C)
    driver.apply(A, round)
    driver.apply(B, round)
    driver.apply(C, round, 0xBAD)
    assert not tally.agreed
    driver.leave(C)
    round = play(driver, A, B)
    driver.apply(A, round)
    driver.apply(B, round)
    assert tally.agreed
    assert tally.rounds_disputed == 1


def test_an_author_whose_payloads_nobody_can_get_is_waited_for_twice() -> None:
    driver = Driver(A, B, C, membership={"lease_ms": 600_000})
    lengths = []
    for _ in range(6):
        opened, began_ms = driver.opened[-1], driver.now_ms
        driver.announce(C, opened.round, digest=sha256(b"nobody has this"))
        driver.exchange(opened.round, A, B)
        if driver.machine.undecided(opened.round):
            driver.wait(3000)
        lengths.append(driver.now_ms - began_ms)
    assert lengths == [3000, 3000, 0, 0, 0, 0]
    assert driver.authors() == [A, B]


def test_a_member_at_the_strike_limit_is_waited_for_no_more_and_proves_itself_in_time() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2, "lease_ms": 600_000})
    driver.end_first_step(C)
    lengths = []
    for _ in range(4):
        opened, began_ms = driver.opened[-1], driver.now_ms
        driver.exchange(opened.round, A, B)
        if driver.machine.undecided(opened.round):
            driver.wait(1500)
        lengths.append(driver.now_ms - began_ms)
    assert lengths == [1500, 1500, 0, 0]
    assert driver.member(C).strikes == 2
    driver.announce(C, 2)
    assert driver.member(C).strikes == 1, "before its publish_by"
    driver.wait(2000)
    strikes = driver.member(C).strikes
    driver.announce(C, 3)
    assert driver.member(C).strikes == strikes, "too late"


def late_round(driver: Driver, late_ms: int) -> int:
    """A round in which A and B are there at its least length and C after a while; its length."""
    opened, began_ms = driver.opened[-1].round, driver.now_ms
    driver.wait(LEAST_MS)
    driver.exchange(opened, A, B)
    driver.hold(C, opened, [A, B])
    driver.wait(late_ms)
    if not driver.machine.undecided(opened):
        driver.announce(C, opened)
        return LEAST_MS
    driver.announce(C, opened)
    for peer in (A, B):
        driver.hold(peer, opened, [C])
    assert not driver.machine.undecided(opened)
    return driver.now_ms - began_ms


LATE_MS = 2 * LEAST_MS


def test_a_public_run_waits_no_more_for_a_member_that_comes_long_after_the_others() -> None:
    driver = public(A, B, C, membership={"lease_ms": 600_000})
    lengths = [late_round(driver, LATE_MS) for _ in range(5)]
    assert lengths == [LEAST_MS + LATE_MS] * 2 + [LEAST_MS] * 3
    assert driver.member(C).strikes == 0, "it was never after its last instant"
    assert "came long after the others" in driver.machine.members.remark(driver.member(C))
    rounds = 0
    while late_round(driver, 1) == LEAST_MS:
        rounds += 1
    assert 15 <= rounds <= 21, "it comes with them again, and is waited for"
    assert late_round(driver, LATE_MS) == LEAST_MS + LATE_MS
    assert late_round(driver, 1) == LEAST_MS, "and no more when it is late again"


def test_who_withholds_does_not_make_rounds_wait_for_those_that_come_late() -> None:
    """Two of five give nobody their payloads: A and B are most of the three others."""
    everybody = A, B, C, D, E
    driver = public(*everybody, vouched=everybody, membership={"lease_ms": 600_000})
    lengths = []
    for _ in range(8):
        opened, began_ms = driver.opened[-1].round, driver.now_ms
        for peer in (D, E):
            driver.announce(peer, opened, digest=sha256(peer.encode() + bytes([opened])))
        driver.wait(LEAST_MS)
        driver.exchange(opened, A, B)
        driver.hold(C, opened, [A, B])
        if driver.machine.undecided(opened):
            driver.wait(LATE_MS)
            driver.announce(C, opened)
            for peer in (A, B):
                driver.hold(peer, opened, [C])
        while driver.machine.undecided(opened):
            driver.wait(500)
        lengths.append(driver.now_ms - began_ms)
    assert lengths[2] == LEAST_MS + LATE_MS, "for C: what they withhold is waited for twice"
    assert lengths[-3:] == [LEAST_MS] * 3


def test_a_member_that_is_late_once_is_waited_for() -> None:
    driver = public(A, B, C, membership={"lease_ms": 600_000})
    for late_ms in (LATE_MS, *[1] * 20, LATE_MS, 1):
        assert late_round(driver, late_ms) == LEAST_MS + late_ms


def test_a_member_that_is_a_little_later_than_the_others_is_waited_for() -> None:
    driver = public(A, B, C, membership={"lease_ms": 600_000})
    for _ in range(50):
        assert late_round(driver, LEAST_MS // SOON_PART) == LEAST_MS + LEAST_MS // SOON_PART


def test_no_round_waits_for_copies_that_come_long_after_the_announcement() -> None:
    driver = public(A, B, C, membership={"lease_ms": 600_000})
    lengths = []
    for _ in range(5):
        opened, began_ms = driver.opened[-1].round, driver.now_ms
        driver.announce(C, opened)
        driver.wait(LEAST_MS)
        driver.exchange(opened, A, B)
        driver.hold(C, opened, [A, B])
        if driver.machine.undecided(opened):
            driver.wait(LATE_MS)
            for peer in (A, B):
                driver.hold(peer, opened, [C])
        lengths.append(driver.now_ms - began_ms)
    assert lengths == [LEAST_MS + LATE_MS] * 2 + [LEAST_MS] * 3
    remarks = [driver.machine.members.remark(driver.member(peer)) for peer in (A, B, C)]
    assert "late, as over broken links" in remarks.pop()
    assert remarks == ["", ""]
    reason = next(each.reason for each in driver.opened[-1].assignments if each.peer == C)
    assert reason.startswith("share halved: others got its payloads")


def test_nothing_is_counted_against_a_member_whose_session_is_lost_while_another_is_late() -> None:
    driver = public(A, B, C, vouched=(A, B, C, D), membership={"lease_ms": 600_000})
    for _ in range(3):
        driver.join(D)
        play(driver, A, B, C)  # it was opened before D came
        driver.part(D)
        opened = driver.opened[-1].round
        driver.wait(LEAST_MS)
        driver.exchange(opened, A, B)
        driver.wait(LATE_MS)
        for peer in (A, B):
            driver.announce(C, opened)
            driver.hold(peer, opened, [C])
        assert not driver.machine.undecided(opened)
    assert driver.machine.members.standing.tardy[C]
    assert D not in driver.machine.members.standing.tardy


def test_a_member_that_lets_others_wait_and_joins_again_is_known_by_its_key() -> None:
    driver = public(A, B, C, membership={"lease_ms": 600_000})
    lengths = []
    for _ in range(5):
        opened, began_ms = driver.opened[-1].round, driver.now_ms
        driver.wait(LEAST_MS)
        driver.exchange(opened, A, B)
        if driver.machine.undecided(opened):
            driver.wait(LATE_MS)
        driver.leave(C)
        lengths.append(driver.now_ms - began_ms)
        driver.join(C)
        play(driver, A, B)
    assert lengths == [LEAST_MS + LATE_MS] * 2 + [LEAST_MS] * 3


def test_one_of_three_that_gives_no_receipts_stops_nothing_and_is_named() -> None:
    driver = public(A, B, C, D)
    for _ in range(UNCONFIRMED_MAX):
        assert driver.machine.members.remark(driver.member(C)) == ""
        play_without_receipts_of(C, driver)
        assert driver.authors() == [A, B, C]
    remarks = [driver.machine.members.remark(driver.member(peer)) for peer in (A, B, C, D)]
    assert "does not say which payloads it holds" in remarks[2]
    assert [remark for remark in remarks if remark] == [remarks[2]]
    driver.announce(A, newest(driver))
    drawn = driver.machine.state.undecided[-1].receipts.drawn
    assert drawn[A] == {B}, "it is a witness no more"
    driver.hold(C, newest(driver), [A])
    play(driver, A, B, C)
    assert driver.machine.members.remark(driver.member(C)) == ""


def play_without_receipts_of(mute: PeerId, driver: Driver) -> None:
    """A round in which A, B and C announce, and all but one say what they hold."""
    round = newest(driver)
    driver.wait(LEAST_MS)
    for peer in (A, B, C):
        driver.announce(peer, round)
    for peer in {A, B, C} - {mute}:
        driver.hold(peer, round, [A, B, C])


def test_while_the_quorum_is_not_reached_members_at_the_limit_are_waited_for() -> None:
    driver = Driver(A, B, membership={"strikes_to_mute": 1, "lease_ms": 600_000})
    driver.end_first_step(B)
    driver.announce(A, 0)
    driver.wait(3000)
    opened = driver.opened[-1]
    assert (driver.member(B).strikes, opened.round) == (1, 1)
    driver.announce(A, 1)
    assert driver.machine.undecided(1), "a skipped round helps nobody"
    driver.announce(B, 1)
    driver.hold(A, 1, [B])
    driver.hold(B, 1, [A])
    assert driver.authors() == [A, B]
