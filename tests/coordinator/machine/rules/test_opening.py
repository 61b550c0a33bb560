"""The opening of a round: its time, its workers and the muted ones among them."""

from protocol.ids import PeerId
from protocol.schedule import scalars
from tests.coordinator.machine.driver import A, B, C, Driver

# ---- opening


def test_the_first_round_opens_when_start_members_are_ready() -> None:
    driver = Driver(membership={"start_members": 3})
    driver.join(A, B)
    assert driver.opened == []
    assert driver.machine.state.reason == "waiting for members: 2 of 3 are ready"
    driver.join(C)
    assert [opened.round for opened in driver.opened] == [0]
    assert [assignment.peer for assignment in driver.opened[0].assignments] == [A, B, C]


def test_start_members_count_only_for_the_first_round() -> None:
    driver = Driver(A, B, C, membership={"start_members": 3})
    driver.leave(C)
    driver.exchange(0, A, B)
    assert [opened.round for opened in driver.opened] == [0, 1]


def test_a_member_that_catches_up_does_not_open_a_round() -> None:
    driver = Driver(A)
    driver.hello(B)
    assert driver.opened == []
    driver.ready(B)
    assert len(driver.opened) == 1


def test_a_quorum_above_start_members_is_waited_for() -> None:
    driver = Driver(rounds={"quorum": 3}, membership={"start_members": 1})
    driver.join(A, B)
    assert driver.opened == []
    driver.join(C)
    assert len(driver.opened) == 1


def test_a_round_carries_its_instants_and_the_float_bits_of_its_step() -> None:
    driver = Driver(A, B)
    opened = driver.opened[0]
    instants = opened.instants
    assert (instants.opened, instants.bell, instants.publish_by, instants.commit_by) == (
        1_000_000,
        1_001_000,
        1_001_500,
        1_003_000,
    )
    assert (opened.learning_rate_bits, opened.decay_bits) == scalars(
        driver.machine.spec.schedule, 0
    )


def test_without_overlap_a_round_is_decided_before_the_next_opens() -> None:
    driver = Driver(A, B, rounds={"overlap": 0})
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert len(driver.machine.state.undecided) == 1
    driver.hold(A, 0, [B])
    assert [opened.round for opened in driver.opened] == [0]
    driver.hold(B, 0, [A])
    assert [opened.round for opened in driver.opened] == [0, 1]


def test_with_overlap_the_next_round_opens_when_everyone_has_announced() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    driver.announce(A, 0)
    assert [opened.round for opened in driver.opened] == [0]
    driver.announce(B, 0)
    assert [opened.round for opened in driver.opened] == [0, 1]
    assert [undecided.round for undecided in driver.machine.state.undecided] == [0, 1]


def test_with_overlap_the_next_round_opens_at_the_bell() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    driver.wait(999)
    assert [opened.round for opened in driver.opened] == [0]
    driver.wait(1)
    assert [opened.round for opened in driver.opened] == [0, 1]


def test_a_round_that_is_audited_opens_when_all_before_it_are_decided() -> None:
    driver = Driver(A, B, rounds={"overlap": 1, "audit_every": 2})
    for round in range(4):
        assert driver.opened[-1].round == round
        driver.announce(A, round)
        driver.announce(B, round)
        overlaps = round % 2 == 0  # the next round's number is odd
        assert driver.opened[-1].round == round + overlaps
        driver.hold(A, round, [B])
        driver.hold(B, round, [A])
        assert driver.opened[-1].round == round + 1


def test_with_overlap_no_third_round_is_in_flight() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    for round in (0, 1):
        driver.announce(A, round)
        driver.announce(B, round)
    assert [opened.round for opened in driver.opened] == [0, 1]
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    assert [opened.round for opened in driver.opened] == [0, 1, 2]


def test_a_round_waits_for_members_to_come_back_and_says_so() -> None:
    driver = Driver(A, B)
    driver.leave(A, B)
    assert driver.machine.state.reason == "waiting for members: 0 of 2 are ready"
    assert len(driver.skips) == 1
    driver.join(A, B)
    assert [opened.round for opened in driver.opened] == [0, 1]


# ---- strikes and muting


def late_rounds(driver: Driver, count: int, *punctual: PeerId) -> None:
    """Only `punctual` announce in the next `count` rounds."""
    for _ in range(count):
        driver.exchange(driver.machine.state.next_round - 1, *punctual)
        driver.wait(1500)


def test_each_strike_halves_the_share_and_says_why() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 5})
    shares = []
    for _ in range(4):
        late_rounds(driver, 1, A, B)
        assignment = driver.opened[-1].assignments[2]
        shares.append(sum(share.count for share in assignment.shares))
    assert shares == [4, 2, 1, 1]
    assert assignment.reason == "share halved: late in 4 rounds"
    assert not assignment.muted


def test_strikes_at_the_limit_mute_and_one_punctual_round_frees() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2})
    driver.end_first_step(C)
    late_rounds(driver, 2, A, B)
    muted = driver.opened[-1].assignments[2]
    assert (muted.muted, muted.reason) == (
        True,
        "late in 2 rounds: counted again after a punctual one",
    )
    driver.exchange(2, A, B)
    assert driver.commits[-1].commit.round == 2, "nobody waits for it"
    driver.announce(C, 2)
    driver.exchange(3, A, B)
    driver.announce(C, 3)
    assert driver.authors() == [A, B]
    assert not driver.opened[-1].assignments[2].muted
    driver.exchange(4, A, B, C)
    assert driver.authors() == [A, B, C]
    assert driver.member(C).strikes == 0


def test_strikes_do_not_grow_beyond_the_limit() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2})
    driver.end_first_step(C)
    late_rounds(driver, 6, A, B)
    assert driver.member(C).strikes == 2


def test_a_first_step_that_outlasts_many_rounds_shrinks_the_share_and_counts_at_once() -> None:
    """Forty seconds of compiling beside members that take three for a round."""
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2})
    began_ms = driver.now_ms
    while driver.now_ms < began_ms + 40_000:
        late_rounds(driver, 1, A, B)
    muted = [assignment.muted for opened in driver.opened for assignment in opened.assignments]
    assert not any(muted)
    assert "share halved: late in 1 round" in driver.opened[-1].assignments[2].reason
    driver.exchange(driver.machine.state.next_round - 1, A, B, C)
    assert driver.authors() == [A, B, C]
    assert driver.member(C).strikes == 0


def test_no_member_is_muted_when_the_others_are_fewer_than_the_quorum() -> None:
    driver = Driver(A, B, membership={"strikes_to_mute": 1})
    driver.end_first_step(B)
    driver.announce(A, 0)
    driver.wait(3000)
    assert driver.machine.members.muted_reason(driver.member(B))
    assert [assignment.muted for assignment in driver.opened[-1].assignments] == [False, False]
    driver.exchange(1, A, B)
    assert driver.authors() == [A, B]


def test_the_payload_of_a_newcomer_counts_from_its_first_round_on() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.join(C)
    driver.exchange(1, A, B)
    assert not driver.opened[-1].assignments[2].muted
    driver.exchange(2, A, B, C)
    assert driver.authors() == [A, B, C]
