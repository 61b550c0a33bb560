"""Members that come back, go away or lose their session in the middle of a round."""

from coordinator.machine.events.effects import AskResync, Evict, OpenRound
from coordinator.machine.events.inputs import Heartbeat, Lapsed, Ready, Restarted
from coordinator.machine.state.membership import LOST_TOGETHER_MS
from tests.coordinator.machine.driver import A, B, C, Driver, of_kind, state_digest

# ---- members in the middle of a round


def test_a_member_that_reconnects_in_the_middle_gets_its_round_again() -> None:
    driver = Driver(A, B)
    first = driver.opened[0]
    driver.hello(A)
    effects = driver.ready(A)
    assert of_kind(OpenRound, effects) == [
        OpenRound(
            0,
            0,
            first.instants,
            first.learning_rate_bits,
            first.decay_bits,
            (first.assignments[0],),
            assigned=2,
        )
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
    assert (
        driver.announce(C, 0) == []
    )  # what it trains is leased again; its honest announcement is no offence
    driver.exchange(0, A, B)
    assert driver.authors() == [A, B]
    assert driver.machine.state.totals.samples_left_out == 8
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
    for event in (Heartbeat(B), Ready(B, -1, state_digest(-1))):
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
    assert driver.tell(Ready(B, 0, 666)) == []
    assert driver.machine.state.verdicts.tally.by_round[0].by_peer.keys() == {A}


def test_every_sign_of_life_renews_the_lease() -> None:
    driver = Driver(A, B, C, membership={"lease_ms": 10_000})
    driver.now_ms += 500
    driver.tell(Heartbeat(A))
    driver.hold(B, 0, [])
    driver.announce(C, 99)
    assert {driver.member(peer).lease_until_ms for peer in (A, B, C)} == {driver.now_ms + 10_000}


def test_a_node_ahead_of_the_log_is_told_to_resync_and_is_not_ready() -> None:
    driver = Driver(A, B)
    driver.hello(C)
    assert driver.tell(Ready(C, 5, 1)) == [AskResync(C, -1, "round 5 is ahead of the log's -1", 1)]
    assert driver.member(C).state == "catching up"


# ---- members whose session was lost


def test_a_round_does_not_wait_for_a_member_whose_session_was_lost() -> None:
    driver = Driver(A, B, C)
    driver.exchange(0, A, B)
    assert driver.commits == []
    driver.part(C)
    assert driver.authors() == [A, B]
    assert (driver.machine.state.totals.samples_left_out, driver.member(C).strikes) == (8, 0)
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
    assert driver.machine.state.reason == "waiting for members: 1 of 2 are ready"
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


def test_after_a_restart_a_round_waits_for_those_that_were_there() -> None:
    driver = Driver(A, B, C, rounds={"compute_ms": 60_000})
    driver.part(C)
    driver.wait(LOST_TOGETHER_MS + 1)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(A, 0, [B])
    driver.tell(Restarted())
    assert driver.commits == []
    driver.hold(B, 0, [A])
    assert driver.authors() == [A, B], "C was away before"


def test_after_a_restart_those_that_were_lost_with_the_coordinator_count_as_connected() -> None:
    driver = Driver(A, B, C)
    driver.part(C)
    driver.tell(Restarted())
    driver.exchange(0, A, B)
    assert driver.commits == []
    driver.announce(C, 0, digest=b"")
    assert driver.authors() == [A, B]
