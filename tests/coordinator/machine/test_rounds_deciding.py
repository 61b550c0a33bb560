"""The decision of a round: its time and its outcome; the fate of the leased samples."""

from coordinator.machine.events.effects import CommitRound, SkipRound
from coordinator.machine.state.receipts import HOLDERS_TOLD_MAX
from protocol.codec.commits import check_link, commit_digest, genesis_digest
from protocol.ids import PeerId
from tests.coordinator.machine.driver import RUN, A, B, C, Driver, of_kind, payload_digest

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


def test_payloads_without_holders_are_not_committed() -> None:
    driver = Driver(A, B)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.leave(A, B)
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
    assert of_kind(SkipRound, effects) == [
        SkipRound(0, "round 0 was skipped: 2 contributors; 3 are needed")
    ]
    assert driver.commits == []
    assert driver.machine.state.totals.skipped == 1
    assert driver.machine.state.head == genesis_digest(RUN)


def test_a_muted_contributor_does_not_fill_the_quorum() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    driver.join(C)
    driver.mute(C)
    driver.exchange(1, A, B)
    opened = driver.opened[-1]
    assert [assignment.muted for assignment in opened.assignments] == [False, False, True]
    driver.announce(A, 2)
    driver.announce(C, 2)
    driver.hold(C, 2, [A])
    driver.wait(1500)
    assert driver.skips[-1].reason == "round 2 was skipped: 1 contributor; 2 are needed"


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
    assert driver.machine.state.head == commit_digest(second)


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


def test_a_payload_that_died_with_its_authors_process_is_not_waited_for() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)  # and is killed before anybody has pulled it
    driver.part(A)
    driver.announce(B, 0)
    driver.announce(C, 0)
    driver.hold(B, 0, [C])
    driver.hold(C, 0, [B])
    assert driver.commits == []  # A may be back with its payload
    driver.hello(A)
    assert driver.commits == []
    driver.ready(A)  # and has said nothing of it
    assert driver.authors() == [B, C]


def test_an_author_that_comes_back_with_its_payload_is_counted() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)
    driver.hold(B, 0, [A])
    driver.part(A)
    driver.hello(A)
    driver.announce(A, 0)
    driver.ready(A)
    driver.announce(B, 0)
    driver.announce(C, 0)
    driver.hold(B, 0, [C])
    driver.hold(C, 0, [B])
    assert driver.authors() == [A, B, C]


def test_the_rate_of_a_member_is_that_at_which_its_payload_reached_others() -> None:
    driver = Driver(A, B, C)
    for peer in (A, B, C):
        driver.announce(peer, 0, payload_bytes=500)
    driver.wait(100)
    driver.hold(B, 0, [A, C])
    driver.wait(100)
    driver.hold(A, 0, [B])
    rates = [driver.member(peer).work.up_bit_s for peer in (A, B, C)]
    assert rates == [40_000, 20_000, 40_000]
