"""What a member is told of the run and of its own part in it, with each heartbeat."""

import pytest

from coordinator.history import History
from coordinator.machine.events.acts import Vouched
from coordinator.machine.events.effects import Point
from coordinator.service.course import Course
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from tests.coordinator.machine.driver import A, B, C, Driver
from tests.coordinator.test_history import take


def told(driver: Driver, peer: PeerId = A) -> wire.HeartbeatReply:
    history = History()
    take(history, driver.effects, driver.now_ms)
    reply = wire.HeartbeatReply()
    Course(driver.machine, history).tell(reply, peer)
    return reply


def test_the_length_and_the_newest_loss_are_told() -> None:
    driver = Driver(A, B)
    assert told(driver).steps == 100
    assert not told(driver).HasField("validation_loss")
    driver.machine.state.evaluation.points.append(Point(9, 9, 2.5, 8, b"", A, "attic"))
    assert (told(driver).validation_loss, told(driver).validation_round) == (2.5, 9)


def test_a_member_is_told_its_part_of_the_samples_that_count_and_the_time_that_is_left() -> None:
    driver = Driver(A, B)
    assert (told(driver).part, told(driver).left_ms) == (0, 0), "nobody has given anything"
    driver.machine.state.period.milliseconds = 3000
    driver.announce(A, 0, samples=2)
    driver.announce(B, 0, samples=6)
    for peer in (A, B):
        driver.hold(peer, 0, (A, B))
    while not driver.machine.state.totals.committed:
        driver.wait(100)
    assert told(driver, A).part == pytest.approx(0.25)
    assert told(driver, B).part == pytest.approx(0.75)
    assert told(driver, C).part == 0
    assert told(driver).left_ms == 99 * driver.machine.state.period.milliseconds
    assert told(driver).standing_rounds == 0, "among people who know each other no key is new"


def test_a_new_key_is_told_how_far_it_is_and_when_its_word_may_count() -> None:
    driver = Driver(membership={"start_members": 2, "trust": "public"})
    for peer in (A, B):
        driver.tell(Vouched(peer))
    driver.join(A, B, C)
    driver.machine.members.standing.payloads[C] = 21
    new = told(driver, C)
    assert (new.fresh_rounds, new.standing_rounds) == (21, 50)
    assert new.standing_round == driver.machine.state.decided_round + 29
    assert told(driver, A).standing_rounds == 0


def test_a_new_key_with_others_waits_for_its_turns() -> None:
    driver = Driver(membership={"start_members": 2, "trust": "public"})
    for peer in (A, B):
        driver.tell(Vouched(peer))
    others = [PeerId(f"{number:032x}") for number in range(7, 9)]
    driver.join(A, B, C, *others)
    assert told(driver, C).standing_round == driver.machine.state.decided_round + 150


def test_what_concerns_all_alike_follows_the_rounds() -> None:
    driver, history = Driver(A, B), History()
    course, reply = Course(driver.machine, history), wire.HeartbeatReply()
    course.tell(reply, A)
    driver.machine.state.period.milliseconds = 3000
    course.tell(reply, A)
    assert reply.left_ms == 0, "it is computed once in each round"
    driver.exchange(0, A, B)
    take(history, driver.effects, driver.now_ms)
    course.tell(reply, A)
    assert reply.left_ms > 0
    assert reply.part == 0.5
