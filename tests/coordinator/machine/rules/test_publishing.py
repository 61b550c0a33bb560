"""Published checkpoints of a run, in virtual time: who writes them, and when one counts."""

from typing import Any

from coordinator.machine.events.acts import Checkpoint, Finish, Pause, Salted, ordered
from coordinator.machine.events.effects import (
    AskCheckpoint,
    CheckpointMade,
    CommitRound,
    Effect,
    FinishRun,
)
from coordinator.machine.events.inputs import (
    CheckpointFailed,
    CheckpointSaid,
    CheckpointStored,
    RoomGiven,
)
from coordinator.machine.rules import publishing
from coordinator.machine.screening import screened
from coordinator.machine.state.checkpoints import Checkpoints
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.ids import PeerId, sha256
from tests.coordinator.machine.driver import A, B, C, Driver, of_kind, state_digest

SHA256 = sha256(b"parameters")
ROOM = 10_000


def published(driver: Driver) -> Checkpoints:
    return driver.machine.state.checkpoints


def run_of(*peers: PeerId, every: int = 2, room: int = ROOM, **sections: Any) -> Driver:
    sections.setdefault("schedule", {"steps": 3})
    driver = Driver(*peers, retention={"checkpoint_every": every}, **sections)
    driver.tell(RoomGiven(room, 2))
    return driver


def asked(driver: Driver) -> AskCheckpoint:
    return of_kind(AskCheckpoint, driver.effects)[-1]


def said(driver: Driver, peer: PeerId | None, **changes: Any) -> list[Effect]:
    ask = asked(driver)
    assert peer
    fields: dict[str, Any] = {"state_digest": state_digest(ask.round), "sha256": SHA256}
    if peer == ask.writer:
        fields["file_bytes"] = 4000
    return driver.tell(CheckpointSaid(peer, ask.round, **(fields | changes)))


def stored(driver: Driver, **changes: Any) -> list[Effect]:
    ask = asked(driver)
    assert ask.writer
    digest = state_digest(ask.round)
    fields: dict[str, Any] = {"state_digest": digest, "sha256": SHA256, "file_bytes": 4000}
    return driver.tell(CheckpointStored(ask.writer, ask.round, **(fields | changes)))


def test_members_are_asked_in_front_of_the_commit_that_they_are_to_publish() -> None:
    driver = run_of(A, B, every=2)
    assert not of_kind(AskCheckpoint, driver.make_round(A, B))
    effects = driver.make_round(A, B)
    kinds = [type(each) for each in effects if isinstance(each, AskCheckpoint | CommitRound)]
    assert kinds == [AskCheckpoint, CommitRound]
    ask = asked(driver)
    assert (ask.round, ask.step) == (1, 1)
    assert {ask.writer, ask.second} == {A, B}


def test_it_is_made_when_the_stored_state_is_the_agreed_one_and_a_second_has_it_too() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    ask = asked(driver)
    assert not of_kind(CheckpointMade, said(driver, ask.writer) + stored(driver))
    (made,) = of_kind(CheckpointMade, said(driver, ask.second))
    found = made.checkpoint
    assert (found.round, found.writer, found.confirmed_by) == (1, ask.writer, ask.second)
    assert found.writer_name.startswith("node "), "the name that the volunteer chose"
    assert made.kept == (found.name,)
    assert publishing.place(driver.machine.state).startswith("the model after round 1: ")


def test_without_a_second_member_it_is_made_and_says_so() -> None:
    driver = run_of(A, rounds={"quorum": 1})
    driver.make_round(A)
    driver.make_round(A)
    said(driver, A)
    (made,) = of_kind(CheckpointMade, stored(driver))
    assert made.checkpoint.confirmed_by is None


def writer_among_lines(salt: int, *up_bit_s: int) -> PeerId | None:
    """The writer in a run of three members with these uplinks."""
    driver = run_of(A, B, C, every=2)
    driver.tell(Salted(bytes([salt])))
    driver.make_round(A, B, C)
    for peer, measured in zip((A, B, C), up_bit_s, strict=True):
        member = driver.machine.members.get(peer)
        assert member
        member.work.up_bit_s = measured
    driver.make_round(A, B, C)
    return asked(driver).writer


def test_a_member_on_a_slow_line_does_not_write() -> None:
    equal = {writer_among_lines(salt, *[10**9] * 3) for salt in range(12)}
    assert equal == {A, B, C}
    assert {writer_among_lines(salt, 10**9, 10**9, 1) for salt in range(12)} == {A, B}


def test_parameters_of_another_state_fail_their_writer_and_another_is_drawn() -> None:
    driver = run_of(A, B, C)
    driver.make_round(A, B, C)
    driver.make_round(A, B, C)
    first = asked(driver)
    said(driver, first.writer)
    said(driver, first.second)
    assert not of_kind(CheckpointMade, stored(driver, state_digest=5))
    assert "its parameters are" in published(driver).note
    driver.make_round(A, B, C)
    assert asked(driver).round == 2
    assert asked(driver).writer != first.writer


def test_a_second_member_with_other_parameters_fails_the_writer() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    said(driver, asked(driver).writer)
    said(driver, asked(driver).second, sha256=sha256(b"others"))
    assert not of_kind(CheckpointMade, stored(driver))
    assert "another SHA-256" in published(driver).note


def test_a_writer_that_goes_is_replaced_and_one_without_a_second_goes_on() -> None:
    driver = run_of(A, B, C, schedule={"steps": 9})
    driver.make_round(A, B, C)
    driver.make_round(A, B, C)
    first = asked(driver)
    assert first.writer
    assert first.second
    driver.leave(first.second)
    work = published(driver).work
    assert work
    assert work.second is None
    driver.leave(first.writer)
    assert published(driver).work is None
    (left,) = {A, B, C} - {first.writer, first.second}
    driver.join(first.writer)
    round = driver.machine.state.undecided[0].round
    driver.exchange(round, left)
    driver.wait(10_000)
    driver.exchange(driver.machine.state.undecided[0].round, left, first.writer)
    assert asked(driver).writer == left, "the one that went is not drawn again"


def test_the_last_step_is_published_and_the_nodes_are_let_go_when_its_state_is_known() -> None:
    driver = run_of(A, B, every=0)
    for _ in range(3):
        driver.make_round(A, B)
    assert driver.machine.state.end.finished
    ask = asked(driver)
    assert ask.round == 2
    assert not of_kind(FinishRun, driver.effects), "the members must still say what they have"
    said(driver, ask.writer)
    assert of_kind(FinishRun, said(driver, ask.second))
    driver.leave(*{A, B} - {ask.writer})
    (made,) = of_kind(CheckpointMade, stored(driver))
    assert made.checkpoint.confirmed_by == ask.second
    late = of_kind(FinishRun, driver.hello(C))
    assert f"checkpoints/{made.checkpoint.name}" in late[0].reason, "who comes later is told"


def test_a_run_that_its_operator_ends_publishes_the_state_at_which_it_stands() -> None:
    driver = run_of(A, B, every=0, schedule={"steps": 50})
    driver.make_round(A, B)
    head = driver.machine.state.operator.head
    driver.tell(ordered(Finish(""), 1, head))
    assert not of_kind(AskCheckpoint, driver.effects), "a round is open"
    driver.make_round(A, B)
    assert driver.machine.state.end.finished
    assert asked(driver).round == driver.machine.state.head_round == 1


def test_the_operator_asks_for_one_and_a_run_that_stands_still_makes_it_at_once() -> None:
    driver = run_of(A, B, every=0, schedule={"steps": 50})
    driver.make_round(A, B)
    driver.tell(ordered(Pause(""), 1, driver.machine.state.operator.head))
    driver.tell(ordered(Checkpoint(), 2, driver.machine.state.operator.head))
    assert not of_kind(AskCheckpoint, driver.effects), "a round is open"
    driver.make_round(A, B)
    assert asked(driver).round == 1
    assert "on its way already" in publishing.objection(driver.machine.state)
    said(driver, asked(driver).writer)
    said(driver, asked(driver).second)
    stored(driver)
    assert "published already" in publishing.objection(driver.machine.state)


def test_after_some_members_have_failed_it_is_given_up_until_the_next_is_due() -> None:
    driver = run_of(A, B, every=0, schedule={"steps": 50})
    for _ in range(3):
        driver.tell(ordered(Checkpoint(), 2, driver.machine.state.operator.head))
        driver.make_round(A, B)
        ask = asked(driver)
        assert ask.writer
        driver.tell(CheckpointFailed(ask.writer, ask.round, "its disk is full"))
    assert "its disk is full" in published(driver).note


def test_old_checkpoints_go_for_new_ones_and_one_without_room_is_not_taken() -> None:
    driver = run_of(A, every=1, room=9000, rounds={"quorum": 1}, schedule={"steps": 50})
    for _ in range(3):
        driver.make_round(A)
        said(driver, A)
        assert published(driver).made_bytes + 4000 <= 9000, "there is room before it comes"
        stored(driver)
    assert [each.round for each in published(driver).made] == [1, 2]
    driver.make_round(A)
    said(driver, A, file_bytes=9001)
    assert published(driver).work is None
    assert "--checkpoint-room gives 9,000" in published(driver).note
    assert [each.round for each in published(driver).made] == [1, 2], "the old ones stay"


def test_without_room_members_publish_themselves_and_only_the_agreed_state_is_shown() -> None:
    driver = run_of(A, B, room=0)
    driver.make_round(A, B)
    driver.make_round(A, B)
    assert (asked(driver).writer, asked(driver).second) == (None, None)
    said(driver, A, url="hf://me/model")
    said(driver, B, url="hf://liar/model", state_digest=5)
    shown = publishing.place(driver.machine.state)
    assert shown == f"the model after round 1: hf://me/model (says {A[:8]})"


def test_a_publication_is_shown_when_the_members_agree_later() -> None:
    driver = run_of(A, B, room=0)
    driver.make_round(A, B)
    driver.exchange(1, A, B)
    said(driver, A, url="hf://me/model")
    assert not publishing.place(driver.machine.state)
    driver.apply(A, 1)
    driver.apply(B, 1)
    assert "hf://me/model" in publishing.place(driver.machine.state)


def test_words_that_nobody_asked_for_are_worth_a_heartbeat() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    word = CheckpointSaid(A, 0, state_digest(0), SHA256, url="hf://a/b")
    assert screened(word, driver.machine) != word
    driver.make_round(A, B)
    word = CheckpointSaid(A, 1, state_digest(1), SHA256)
    assert screened(word, driver.machine) == word
    said(driver, A)
    assert screened(word, driver.machine) != word, "it was said before"
    stranger = CheckpointSaid(C, 1, state_digest(1), SHA256)
    assert screened(stranger, driver.machine) != stranger


def test_a_member_that_comes_back_is_asked_again() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    driver.hello(A)
    effects = of_kind(AskCheckpoint, driver.ready(A))
    assert [each.to for each in effects] == [A]


def test_the_state_survives_its_encoding() -> None:
    driver = run_of(A, B)
    driver.make_round(A, B)
    driver.make_round(A, B)
    for _ in range(2):
        state = driver.machine.state
        assert durable_part(decode_state(encode_state(state))) == durable_part(state)
        said(driver, asked(driver).writer)
        said(driver, asked(driver).second)
        stored(driver)
        assert state.checkpoints.made
