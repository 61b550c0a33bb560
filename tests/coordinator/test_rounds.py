"""The rules of the machine of rounds, each at its edge."""

import pytest

from coordinator.events import (
    AskResync,
    Assignment,
    CommitRound,
    Evict,
    FinishRun,
    Held,
    Lapsed,
    OpenRound,
    Reached,
    Readied,
    RecordDigest,
    Renewed,
    Restarted,
    SkipRound,
)
from coordinator.inflight import HOLDERS_TOLD_MAX
from protocol.commits import check_link, commit_digest, genesis_digest
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import PeerId, sha256
from protocol.schedule import scalars
from protocol.shuffle import Share
from tests.coordinator.driver import RUN, A, B, C, D, Driver, of_kind, payload_digest, state_digest

# ---- opening


def test_the_first_round_opens_when_start_members_are_ready() -> None:
    driver = Driver(membership={"start_members": 3})
    driver.join(A, B)
    assert driver.opened == []
    assert driver.machine.reason == "waiting for members: 2 of 3 are ready"
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
    assert (opened.learning_rate_bits, opened.decay_bits) == scalars(driver.machine.spec.schedule, 0)


def test_without_overlap_a_round_is_decided_before_the_next_opens() -> None:
    driver = Driver(A, B, rounds={"overlap": 0})
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert len(driver.machine.in_flight) == 1
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
    assert [flight.round for flight in driver.machine.in_flight] == [0, 1]


def test_with_overlap_the_next_round_opens_at_the_bell() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    driver.wait(999)
    assert [opened.round for opened in driver.opened] == [0]
    driver.wait(1)
    assert [opened.round for opened in driver.opened] == [0, 1]


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
    assert driver.machine.reason == "waiting for members: 0 of 2 are ready"
    assert len(driver.skips) == 1
    driver.join(A, B)
    assert [opened.round for opened in driver.opened] == [0, 1]


# ---- deciding


def test_a_round_closes_early_when_everyone_announced_and_copies_exist() -> None:
    driver = Driver(A, B)
    effects = driver.exchange(0, A, B)
    (commit,) = of_kind(CommitRound, effects)
    assert driver.now_ms == 1_000_000
    assert [entry.author for entry in commit.commit.entries] == [A, B]
    assert commit.commit.entries[0].digest == payload_digest(A, 0)
    assert commit.commit.entries[0].payload_bytes == 100


def test_a_round_is_not_closed_early_while_a_copy_is_missing() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(A, 0, [B, C])
    assert driver.commits == []
    driver.hold(C, 0, [A])
    assert driver.authors() == [A, B, C]


def test_a_payload_without_copies_at_commit_by_is_left_out() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    driver.wait(3000)
    assert driver.authors() == [A, B]


def test_an_author_is_no_copy_of_its_own_payload() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(A, 0, [A, B])
    driver.hold(B, 0, [B])
    driver.wait(3000)
    assert driver.commits == []
    assert len(driver.skips) == 1


def test_fewer_members_than_copies_need_all_the_others() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 5})
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(A, 0, [B, C])
    driver.hold(B, 0, [A, C])
    assert driver.commits == []
    driver.hold(C, 0, [A, B])
    assert driver.authors() == [A, B, C]


def test_a_lone_member_needs_no_copy() -> None:
    driver = Driver(A, rounds={"quorum": 1, "copies_min": 3}, membership={"start_members": 1})
    driver.announce(A, 0)
    assert driver.authors() == [A]


def test_copies_zero_needs_no_receipt() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert driver.authors() == [A, B]


def test_a_member_that_catches_up_is_not_waited_for_as_a_holder() -> None:
    driver = Driver(A, rounds={"quorum": 1}, membership={"start_members": 1})
    driver.hello(B)
    driver.announce(A, 0)
    assert driver.authors() == [A]


def test_receipts_of_a_member_that_left_do_not_count() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(C, 0, [A, B])
    driver.leave(C)
    driver.wait(3000)
    assert driver.commits == []
    assert len(driver.skips) == 1


def test_a_dead_authors_payload_is_committed_when_a_live_member_holds_it() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(B, 0, [A])
    driver.leave(A)
    driver.hold(B, 0, [C])
    driver.hold(C, 0, [B])
    assert driver.authors() == [A, B, C]


def test_payloads_that_nobody_holds_any_more_are_not_committed() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.leave(A, B)
    assert driver.machine.in_flight  # they may come back and hold them again
    driver.wait(3000)
    assert driver.commits == []
    assert [skip.round for skip in driver.skips] == [0]


def test_exactly_the_quorum_commits() -> None:
    driver = Driver(A, B, C, rounds={"quorum": 2})
    driver.exchange(0, A, B)
    driver.wait(1500)
    assert driver.authors() == [A, B]


def test_one_below_the_quorum_skips_with_the_numbers() -> None:
    driver = Driver(A, B, C, rounds={"quorum": 3})
    driver.exchange(0, A, B)
    effects = driver.wait(1500)
    assert of_kind(SkipRound, effects) == [SkipRound(0, "round 0 was skipped: 2 contributors, quorum 3")]
    assert driver.commits == []
    assert driver.machine.skipped == 1
    assert driver.machine.head == genesis_digest(RUN)


def test_a_muted_contributor_does_not_fill_the_quorum() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.join(C, momentum=False)
    driver.exchange(1, A, B)
    opened = driver.opened[-1]
    assert [assignment.muted for assignment in opened.assignments] == [False, False, True]
    driver.announce(A, 2)
    driver.announce(C, 2)
    driver.hold(C, 2, [A])
    driver.wait(1500)
    assert driver.skips[-1].reason == "round 2 was skipped: 1 contributors, quorum 2"


def test_rounds_are_decided_in_order() -> None:
    driver = Driver(A, B, rounds={"overlap": 1})
    for peer in (A, B):
        driver.announce(peer, 0)
    driver.exchange(1, A, B)
    assert driver.commits == []
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    assert [commit.commit.round for commit in driver.commits] == [0, 1]


def test_commits_link_and_skips_leave_no_gap_in_the_chain() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.wait(1500)
    driver.exchange(2, A, B)
    first, second = (effect.commit for effect in driver.commits)
    assert (first.round, first.step, second.round, second.step) == (0, 0, 2, 1)
    check_link(first, RUN, genesis_digest(RUN), -1)
    check_link(second, RUN, commit_digest(first), 0)
    assert driver.machine.head == commit_digest(second)


def test_the_loss_of_a_commit_is_the_mean_over_its_samples() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    driver.announce(A, 0, samples=1, loss=4.0)
    driver.announce(B, 0, samples=3, loss=2.0)
    assert driver.commits[0].loss == 2.5


def test_a_commit_tells_holders_but_not_all_of_many() -> None:
    peers = [PeerId(f"{number:032x}") for number in range(1, 21)]
    driver = Driver(*peers)
    driver.exchange(0, *peers)
    (commit,) = driver.commits
    assert len(commit.holders) == 20
    assert len(commit.commit.entries) == 20
    assert {len(holders) for holders in commit.holders} <= set(range(1, HOLDERS_TOLD_MAX + 1))
    assert all(list(holders) == sorted(set(holders)) for holders in commit.holders)


# ---- announcements


def test_an_announcement_at_publish_by_counts_and_one_after_it_does_not() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 0})
    driver.wait(1499)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.now_ms += 1
    driver.tell(Reached(0, "bell"))
    driver.tell(Reached(0, "publish_by"))
    assert driver.authors() == [A, B]
    assert driver.announce(C, 0) == []


def test_a_late_announcement_is_ignored_and_struck() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 2})
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.wait(1500)
    trained = driver.machine.samples_trained
    assert driver.member(C).strikes == 1
    assert driver.announce(C, 0) == []
    assert driver.member(C).strikes == 1
    assert driver.machine.samples_trained == trained
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    driver.hold(C, 0, [A, B])
    assert driver.authors() == [A, B]


def test_a_second_announcement_of_a_round_changes_nothing() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    trained = driver.machine.samples_trained
    driver.announce(A, 0, digest=payload_digest(D, 9), samples=1)
    flight = driver.machine.flight(0)
    assert flight is not None
    assert flight.announced[A].digest == payload_digest(A, 0)
    assert driver.machine.samples_trained == trained


def test_an_announcement_of_a_decided_round_changes_nothing() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    before = driver.machine.samples_trained
    assert driver.announce(A, 0) == []
    assert driver.announce(A, 7) == []
    assert driver.machine.samples_trained == before


def test_an_announcement_of_a_member_that_was_not_asked_changes_nothing() -> None:
    driver = Driver(A, B)
    driver.join(C)
    driver.announce(C, 0)
    flight = driver.machine.flight(0)
    assert flight is not None
    assert flight.announced == {}


def test_an_announcement_of_a_stranger_changes_nothing() -> None:
    driver = Driver(A, B)
    assert driver.announce(D, 0) == []
    assert driver.machine.members.get(D) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"samples": 9}, "expected at most 8 samples used, got 9"),
        ({"payload_bytes": 0}, "expected a payload of 1..4096 bytes, got 0"),
        ({"payload_bytes": 4097}, "expected a payload of 1..4096 bytes, got 4097"),
    ],
)
def test_an_impossible_announcement_is_an_error_with_its_sender_and_changes_nothing(
    changes: dict[str, int], words: str
) -> None:
    driver = Driver(A, B)
    with pytest.raises(RemoteProtocolError, match=f"{A}: {words}"):
        driver.announce(A, 0, **changes)
    assert driver.machine.samples_trained == 0
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_a_muted_member_may_not_send_a_payload() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.join(C, momentum=False)
    driver.exchange(1, A, B)
    with pytest.raises(RemoteProtocolError, match="expected no payload from a muted member in round 2"):
        driver.announce(C, 2, digest=payload_digest(C, 2))
    driver.announce(C, 2)
    driver.exchange(2, A, B)
    assert driver.authors() == [A, B]


def test_an_announcement_without_a_payload_is_punctual_and_not_counted() -> None:
    driver = Driver(A, B, C)
    driver.announce(C, 0, digest=b"", samples=0)
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]
    assert driver.member(C).strikes == 0


def test_junk_receipts_of_one_member_do_not_shut_out_the_others() -> None:
    driver = Driver(A, B, C)
    for number in range(100):
        driver.tell(Held(C, 0, tuple(sha256(f"junk {number} {part}".encode()) for part in range(10))))
    driver.exchange(0, A, B)
    driver.announce(C, 0, digest=b"")
    assert driver.authors() == [A, B]


def test_receipts_before_the_announcement_count() -> None:
    driver = Driver(A, B)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert driver.authors() == [A, B]


def test_receipts_of_a_stranger_do_not_count() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(D, 0, [A, B])
    driver.wait(3000)
    assert driver.commits == []


# ---- samples


def test_an_unused_part_of_a_share_returns_and_is_leased_first() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    assert driver.opened[0].assignments[0].shares == (Share(0, 8),)
    driver.announce(A, 0, samples=3)
    driver.announce(B, 0)
    assert driver.machine.samples_trained == 11
    first = driver.opened[1].assignments[0].shares
    assert first[0] == Share(3, min(5, first[0].count))


def test_samples_of_a_member_that_leaves_unannounced_are_lost_once() -> None:
    driver = Driver(A, B, C)
    driver.leave(C)
    assert driver.machine.samples_lost == 8
    driver.leave(C)
    assert driver.machine.samples_lost == 8


def test_samples_of_a_member_that_leaves_after_announcing_are_trained() -> None:
    driver = Driver(A, B, C)
    driver.announce(C, 0)
    driver.leave(C)
    assert (driver.machine.samples_trained, driver.machine.samples_lost) == (8, 0)


def test_samples_of_a_lapsed_member_are_lost() -> None:
    driver = Driver(A, B, C, rounds={"compute_ms": 5000}, membership={"lease_ms": 2000})
    driver.wait(1000)
    driver.tell(Renewed(A))
    driver.tell(Renewed(B))
    effects = driver.wait(1000)
    assert of_kind(Evict, effects) == [Evict(C, "silent for 2 s")]
    assert driver.machine.samples_lost == 8


def test_samples_of_a_late_member_are_lost() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B)
    driver.wait(1500)
    driver.announce(C, 0)
    assert (driver.machine.samples_trained, driver.machine.samples_lost) == (16, 8)


# ---- strikes and muting


def late_rounds(driver: Driver, count: int, *punctual: PeerId) -> None:
    """Only `punctual` announce in the next `count` rounds."""
    for _ in range(count):
        driver.exchange(driver.machine.next_round - 1, *punctual)
        driver.wait(1500)


def test_each_strike_halves_the_share_and_says_why() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 5})
    shares = []
    for _ in range(4):
        late_rounds(driver, 1, A, B)
        assignment = driver.opened[-1].assignments[2]
        shares.append(sum(share.count for share in assignment.shares))
    assert shares == [4, 2, 1, 1]
    assert assignment.reason == "share halved 4 times for late rounds"
    assert not assignment.muted


def test_strikes_at_the_limit_mute_and_one_punctual_round_frees() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2})
    late_rounds(driver, 2, A, B)
    muted = driver.opened[-1].assignments[2]
    assert (muted.muted, muted.reason) == (True, "late in 2 rounds: counted again after a punctual one")
    driver.exchange(2, A, B)
    driver.announce(C, 2)
    assert driver.authors() == [A, B]
    assert not driver.opened[-1].assignments[2].muted
    driver.exchange(3, A, B, C)
    assert driver.authors() == [A, B, C]
    assert driver.member(C).strikes == 0


def test_strikes_do_not_grow_beyond_the_limit() -> None:
    driver = Driver(A, B, C, membership={"strikes_to_mute": 2})
    late_rounds(driver, 6, A, B)
    assert driver.member(C).strikes == 2


def test_nobody_is_muted_when_the_others_are_fewer_than_the_quorum() -> None:
    driver = Driver(A, B, membership={"strikes_to_mute": 1})
    driver.announce(A, 0)
    driver.wait(3000)
    assert driver.machine.members.muted_reason(driver.member(B))
    assert [assignment.muted for assignment in driver.opened[-1].assignments] == [False, False]
    driver.exchange(1, A, B)
    assert driver.authors() == [A, B]


def test_a_member_without_momentum_is_muted_for_warmup_rounds() -> None:
    driver = Driver(A, B, membership={"warmup_rounds": 2})
    driver.exchange(0, A, B)
    driver.join(C, momentum=False)
    driver.exchange(1, A, B)
    for round in (2, 3):
        newcomer = driver.opened[-1].assignments[2]
        assert newcomer.muted
        assert newcomer.reason == f"building momentum: counted after {4 - round} more rounds"
        driver.announce(C, round)
        driver.exchange(round, A, B)
    assert not driver.opened[-1].assignments[2].muted


def test_at_genesis_nobody_has_momentum_and_nobody_is_muted() -> None:
    driver = Driver()
    driver.join(A, B, momentum=False)
    assert [assignment.muted for assignment in driver.opened[0].assignments] == [False, False]


# ---- members in the middle of a round


def test_a_member_that_reconnects_in_the_middle_gets_its_round_again() -> None:
    driver = Driver(A, B)
    first = driver.opened[0]
    driver.hello(A)
    effects = driver.ready(A)
    assert of_kind(OpenRound, effects) == [
        OpenRound(0, 0, first.instants, first.learning_rate_bits, first.decay_bits, (first.assignments[0],))
    ]
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_a_member_that_reconnects_after_announcing_does_not_get_its_round_again() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.hello(A)
    assert of_kind(OpenRound, driver.ready(A)) == []


def test_a_member_that_lapsed_and_came_back_takes_part_from_the_next_round() -> None:
    driver = Driver(A, B, C)
    driver.tell(Lapsed(C))
    assert of_kind(OpenRound, driver.join(C)) == []
    assert driver.announce(C, 0) == []  # what it trained is lost already; its honest announcement is no offence
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]
    assert driver.machine.samples_lost == 8
    assert [assignment.peer for assignment in driver.opened[-1].assignments] == [A, B, C]


def test_a_round_does_not_wait_for_a_member_that_left_and_came_back() -> None:
    driver = Driver(A, B, C)
    driver.leave(C)
    driver.join(C)
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_an_author_that_came_back_holds_its_payload_again() -> None:
    driver = Driver(A, B, C, rounds={"copies_min": 0})
    driver.announce(A, 0)
    driver.leave(A)
    driver.join(A)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.announce(C, 0)
    assert driver.authors() == [A, B, C]


def test_a_renewal_never_revives() -> None:
    driver = Driver(A, B)
    driver.leave(B)
    for event in (Renewed(B), Readied(B, -1, state_digest(-1), True)):
        assert driver.tell(event) == []
        assert driver.machine.members.get(B) is None
    driver.apply(B, 0)
    driver.announce(B, 0)
    driver.hold(B, 0, [A])
    assert driver.machine.members.get(B) is None


def test_ready_from_a_former_member_is_no_vote_and_gets_no_round() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.apply(A, 0)
    driver.tell(Lapsed(B))
    assert driver.tell(Readied(B, 0, 666, True)) == []
    assert driver.machine.votes.tally(0).reports == 1


def test_every_sign_of_life_renews_the_lease() -> None:
    driver = Driver(A, B, C, membership={"lease_ms": 10_000})
    driver.now_ms += 500
    driver.tell(Renewed(A))
    driver.hold(B, 0, [])
    driver.announce(C, 99)
    assert {driver.member(peer).lease_until_ms for peer in (A, B, C)} == {driver.now_ms + 10_000}


def test_a_node_ahead_of_the_log_is_told_to_resync_and_is_not_ready() -> None:
    driver = Driver(A, B)
    driver.hello(C)
    assert driver.tell(Readied(C, 5, 1, True)) == [AskResync(C, -1, "round 5 is ahead of the log's -1")]
    assert driver.member(C).state == "catching up"


# ---- members whose session was lost


def test_a_round_does_not_wait_for_a_member_whose_session_was_lost() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B)
    assert driver.commits == []
    driver.part(C)
    assert driver.authors() == [A, B]
    assert (driver.machine.samples_lost, driver.member(C).strikes) == (8, 0)
    assert [assignment.peer for assignment in driver.opened[-1].assignments] == [A, B]


def test_a_member_that_is_back_in_time_gets_its_round_again() -> None:
    driver = Driver(A, B, C)
    driver.part(C)
    assert [effect.assignments[0].peer for effect in of_kind(OpenRound, driver.join(C))] == [C]
    driver.exchange(0, A, B, C)
    assert driver.authors() == [A, B, C]


def test_a_member_whose_session_was_lost_is_not_asked_to_work() -> None:
    driver = Driver(A, B)
    driver.part(B)
    driver.wait(3000)
    assert len(driver.opened) == 1
    assert driver.machine.reason == "waiting for members: 1 of 2 are ready"
    driver.join(B)
    assert len(driver.opened) == 2


def test_a_lost_session_lets_no_uncopied_payload_pass() -> None:
    driver = Driver(A, B, rounds={"quorum": 1})
    driver.announce(A, 0)
    driver.part(B)
    driver.wait(3000)
    assert driver.commits == []
    assert len(driver.skips) == 1


def test_receipts_of_a_member_whose_session_was_lost_count() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0)
    driver.hold(C, 0, [A, B])
    driver.part(C)
    driver.hold(A, 0, [C])
    assert driver.authors() == [A, B, C]


def test_a_round_that_all_sessions_leave_at_once_waits_for_them_until_commit_by() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)
    driver.part(A, B, C)
    driver.wait(2999)
    assert driver.skips == []
    driver.wait(1)
    assert len(driver.skips) == 1


def test_a_lost_session_keeps_its_lease() -> None:
    driver = Driver(A, B, membership={"lease_ms": 10_000})
    driver.part(B)
    assert of_kind(Evict, driver.wait(9999)) == []
    assert [effect.peer for effect in of_kind(Evict, driver.wait(1))] == [A, B]


def test_after_a_restart_everyone_counts_as_connected() -> None:
    driver = Driver(A, B, C)
    driver.part(C)
    driver.tell(Restarted())
    driver.exchange(0, A, B)
    assert driver.commits == []
    driver.announce(C, 0, digest=b"")
    assert driver.authors() == [A, B]


# ---- digests


def agreeing(driver: Driver, *peers: PeerId) -> None:
    driver.join(*peers)
    driver.exchange(0, *peers)


def test_the_majority_of_digests_is_recorded_with_its_reports() -> None:
    driver = Driver()
    agreeing(driver, A, B, C)
    assert driver.apply(A, 0) == [RecordDigest(0, state_digest(0), 1, 0, b"")]
    assert driver.apply(B, 0) == [RecordDigest(0, state_digest(0), 2, 0, b"")]
    assert driver.machine.votes.rounds_disputed == 0


def test_a_dissenter_is_told_once_and_set_back() -> None:
    driver = Driver()
    agreeing(driver, A, B, C)
    driver.apply(A, 0)
    driver.apply(B, 0)
    effects = driver.apply(C, 0, digest=666)
    assert of_kind(AskResync, effects) == [AskResync(C, 0, "state after round 0 differs from the majority's")]
    assert driver.member(C).state == "catching up"
    assert of_kind(AskResync, driver.apply(A, 0)) == []
    assert driver.machine.votes.rounds_disputed == 1


def test_a_dissenter_that_spoke_first_is_told_when_the_majority_forms() -> None:
    driver = Driver()
    agreeing(driver, A, B, C)
    driver.apply(C, 0, digest=666)
    assert driver.apply(A, 0) == []  # level: nobody can say who is right
    effects = driver.apply(B, 0)
    assert of_kind(AskResync, effects) == [AskResync(C, 0, "state after round 0 differs from the majority's")]
    assert of_kind(RecordDigest, effects) == [RecordDigest(0, state_digest(0), 3, 1, b"")]


def test_a_dissenter_that_says_ready_with_the_wrong_state_is_told_again() -> None:
    driver = Driver()
    agreeing(driver, A, B, C)
    for peer in (A, B):
        driver.apply(peer, 0)
    driver.apply(C, 0, digest=666)
    effects = driver.tell(Readied(C, 0, 666, True))
    assert [effect.peer for effect in of_kind(AskResync, effects)] == [C]
    assert driver.member(C).state == "catching up"
    driver.ready(C)
    assert driver.member(C).state == "ready"


def test_digests_of_a_round_that_is_not_committed_yet_are_ignored() -> None:
    driver = Driver()
    agreeing(driver, A, B)
    assert driver.apply(A, 1) == []
    assert driver.member(A).round == -1


def test_an_old_digest_does_not_replace_the_recorded_majority() -> None:
    driver = Driver(A, B, rounds={"copies_min": 0})
    for round in range(70):
        driver.announce(A, round)
        driver.announce(B, round)
        driver.apply(A, round)
        driver.apply(B, round)
    assert driver.apply(A, 0, digest=666) == []
    assert driver.machine.votes.last == state_digest(69)


# ---- the end


def test_the_run_finishes_after_its_steps() -> None:
    driver = Driver(A, B, schedule={"steps": 2})
    driver.exchange(0, A, B)
    assert not driver.machine.finished
    driver.exchange(1, A, B)
    assert driver.machine.finished
    assert driver.machine.in_flight == []
    assert len(driver.opened) == 2


def test_nodes_are_let_go_when_all_of_them_hold_the_last_commit() -> None:
    driver = Driver(schedule={"steps": 1})
    agreeing(driver, A, B)
    assert of_kind(FinishRun, driver.apply(A, 0)) == []  # B may still need what A holds
    assert of_kind(FinishRun, driver.apply(B, 0)) == [FinishRun("all 1 steps are done")]
    assert driver.machine.concluded


def test_a_finished_run_waits_for_one_that_went_missing_and_two_leases_at_most() -> None:
    lease_ms = Driver().machine.spec.membership.lease_ms
    for comes_back in (True, False):
        driver = Driver(A, B, C, schedule={"steps": 1})
        driver.exchange(0, A, B)
        driver.part(C)
        driver.apply(A, 0)
        driver.apply(B, 0)
        effects = driver.wait(lease_ms - 1)
        if comes_back:
            assert of_kind(FinishRun, effects) == []
            assert of_kind(FinishRun, driver.join(C)) == [FinishRun("all 1 steps are done")]
        else:
            assert of_kind(FinishRun, effects + driver.wait(lease_ms)) == []
            assert of_kind(FinishRun, driver.wait(2)) == [FinishRun("all 1 steps are done")]


def test_a_member_that_said_goodbye_is_not_waited_for_at_the_end() -> None:
    driver = Driver(A, B, C, schedule={"steps": 1})
    driver.exchange(0, A, B)
    driver.leave(C)
    driver.apply(A, 0)
    assert of_kind(FinishRun, driver.apply(B, 0)) == [FinishRun("all 1 steps are done")]


def test_a_skipped_round_makes_no_step() -> None:
    driver = Driver(A, B, schedule={"steps": 2})
    driver.exchange(0, A, B)
    driver.wait(1500)
    assert not driver.machine.finished
    driver.exchange(2, A, B)
    assert driver.machine.finished
    assert [commit.commit.round for commit in driver.commits] == [0, 2]


def test_with_overlap_a_skipped_last_round_is_followed_by_another() -> None:
    driver = Driver(A, B, schedule={"steps": 2}, rounds={"overlap": 1})
    driver.announce(A, 0)
    driver.announce(B, 0)
    assert [opened.round for opened in driver.opened] == [0, 1]
    driver.announce(A, 1)
    driver.announce(B, 1)
    assert [opened.round for opened in driver.opened] == [0, 1]  # the two steps of the run are under way
    driver.wait(3000)
    assert [skip.round for skip in driver.skips] == [0, 1]
    driver.exchange(2, A, B)
    driver.exchange(3, A, B)
    assert [(commit.commit.round, commit.commit.step) for commit in driver.commits] == [(2, 0), (3, 1)]
    assert driver.machine.finished


def test_a_node_that_comes_back_after_the_end_is_told() -> None:
    driver = Driver(schedule={"steps": 1})
    agreeing(driver, A, B)
    driver.apply(A, 0)
    driver.apply(B, 0)
    driver.leave(A)
    assert of_kind(FinishRun, driver.join(A)) == [FinishRun("all 1 steps are done")]


# ---- time and restarts


def test_time_that_runs_backwards_is_our_own_bug() -> None:
    driver = Driver(A)
    driver.now_ms -= 1
    with pytest.raises(LocalProtocolError, match="expected time at or after 1000000, got 999999"):
        driver.join(B)


def test_instants_become_due_one_by_one_in_order() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)  # and nobody holds it: the round waits until commit_by
    seen = []
    for milliseconds in (999, 1, 499, 1, 1499, 1):
        driver.now_ms += milliseconds
        due = driver.machine.due(driver.now_ms)
        seen.append(due)
        for event in due:
            driver.tell(event)
    assert seen == [[], [Reached(0, "bell")], [], [Reached(0, "publish_by")], [], [Reached(0, "commit_by")]]


def test_an_instant_of_a_decided_round_says_nothing() -> None:
    driver = Driver()
    agreeing(driver, A, B)
    assert driver.tell(Reached(0, "commit_by")) == []
    assert len(driver.commits) == 1
    assert driver.skips == []


def test_a_restart_extends_leases_and_instants_by_the_outage() -> None:
    driver = Driver(A, B, membership={"lease_ms": 4000, "heartbeat_ms": 1000})
    before = driver.machine.in_flight[0].instants
    driver.now_ms += 60_000
    driver.tell(Restarted())
    after = driver.machine.in_flight[0].instants
    assert (after.bell - before.bell, after.publish_by - before.publish_by, after.commit_by - before.commit_by) == (
        60_000,
        60_000,
        60_000,
    )
    assert driver.member(A).lease_until_ms == driver.now_ms + 4000
    assert driver.machine.due(driver.now_ms) == []
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]


def test_a_round_that_was_reached_stays_reached_over_a_restart() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)
    driver.wait(1500)
    driver.now_ms += 60_000
    driver.tell(Restarted())
    assert driver.announce(B, 0) == []
    flight = driver.machine.flight(0)
    assert flight is not None
    assert sorted(flight.announced) == [A]
    assert flight.assignments[B] == Assignment(B, (Share(8, 8),), False, "")
