"""A run's state as bytes: nothing forgotten, nothing changed."""

from dataclasses import fields, is_dataclass
from typing import Any

import pytest

from coordinator.machine.events.acts import Admit, Allow, Announce, Ban, Token, ordered
from coordinator.machine.events.inputs import LinksMeasured
from coordinator.machine.machine import RunMachine
from coordinator.machine.state.checkpoints import Checkpoints
from coordinator.machine.state.consensus import Consensus
from coordinator.machine.state.evaluation import Evaluation
from coordinator.machine.state.run_state import RunState, new_state
from coordinator.machine.state.standing import PARTS
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.errors import LocalProtocolError, StorageError
from protocol.ids import sha256
from protocol.mixing.link_report import MeasuredLink
from tests.coordinator.machine.driver import RUN, A, B, C, D, Driver


def busy() -> Driver:
    """A machine with something in nearly every field: a commit, a skip, a round under way, a member
    that lapsed and one with a record of wrong digests.
    """
    driver = Driver(A, B, C, D, schedule={"steps": 9}, rounds={"overlap": 1})
    driver.lapse(D)
    driver.exchange(0, A, B, C)
    driver.apply(A, 0)
    driver.apply(B, 0, digest=666)
    driver.apply(C, 0)
    driver.announce(A, 1, samples=1)
    driver.hold(B, 1, [A])
    driver.part(C)
    driver.wait(3000)
    driver.ready(B)
    driver.announce(A, driver.machine.state.undecided[-1].round, samples=1)
    for peer in (A, C):
        driver.tell(LinksMeasured(peer, (MeasuredLink(B, 2, greedy=True, breaks=True),)))
    operate(driver)
    driver.machine.state.members.standing.note_pace(A, PARTS, 3)  # as in a public run
    return driver


def operate(driver: Driver) -> None:
    """The operator's orders that let rounds go on."""
    for act in (
        Announce("text"),
        Ban("192.0.2.7", "noise"),
        Allow(D),
        Token("t", sha256(b"secret")),
        Admit("token"),
    ):
        head = driver.machine.state.operator.head
        driver.tell(ordered(act, 1_700_000_000, head))


def restored(state: RunState) -> RunState:
    return decode_state(encode_state(state))


def unchanged(value: Any, initial: Any, path: str = "state") -> list[str]:
    """Paths of the fields of `value` that are as they were at the beginning."""
    if is_dataclass(value) and type(value) is type(initial):
        return [
            found
            for field in fields(value)
            for found in unchanged(
                getattr(value, field.name), getattr(initial, field.name), f"{path}.{field.name}"
            )
        ]
    return [path] if value == initial else []


def test_every_field_that_a_machine_has_changed_is_restored() -> None:
    state = busy().machine.state
    assert restored(state) == state
    initial = unchanged(state, new_state(Driver().machine.spec, RUN))
    assert set(initial) <= {
        "state.pace.slot.compute_ms",
        "state.pace.slot.publish_ms",
        "state.pace.slot.exchange_ms",
        "state.pace.reason",
        "state.members.former",
        "state.operator.rejected",  # with an auditor: machine/rules/test_demotion.py
        "state.verdicts.held",
        "state.verdicts.origin",
        "state.verdicts.auditors",
        "state.verdicts.contradiction",
        "state.totals.samples_lost",
        "state.totals.samples_void",
        "state.relays.known",  # with relays that add: machine/rules/sums/test_offering.py
        "state.totals.result_bytes",  # with summers: machine/test_rounds_adding.py
        "state.voids.rounds",
        "state.voids.made",
        "state.restarts",
        *(f"state.consensus.{field.name}" for field in fields(Consensus)),
        "state.schedules",
        "state.closed_early",
        *(
            f"state.members.standing.{name}"
            for name in ("vouched", "payloads", "salt", "demoted", "restored")
        ),
        "state.end.finished",
        "state.end.concluded",
        "state.end.conclude_by_ms",
        "state.unready_since_ms",
        *(f"state.checkpoints.{field.name}" for field in fields(Checkpoints)),
        *(f"state.evaluation.{field.name}" for field in fields(Evaluation)),
        "state.operator.paused",
        "state.operator.finishing",
        "state.operator.away",
    }


def test_a_resumed_machine_goes_on_as_the_one_that_was_encoded() -> None:
    driver = busy()
    twin = RunMachine(driver.machine.spec, RUN)
    twin.resume(restored(driver.machine.state))
    again = Driver(schedule={"steps": 9}, rounds={"overlap": 1})
    again.machine, again.now_ms = twin, driver.now_ms
    for each in (driver, again):
        each.join(C)
        for round in range(each.machine.state.decided_round + 1, each.machine.state.next_round + 3):
            each.exchange(round, A, B, C)
            each.wait(10)
    assert again.effects[-1] == driver.effects[-1]
    assert durable_part(twin.state) == durable_part(driver.machine.state)
    assert driver.machine.state.totals.committed > 2


def test_a_machine_under_way_is_not_given_another_state() -> None:
    driver = busy()
    with pytest.raises(LocalProtocolError, match="expected a state only before the first event"):
        driver.machine.resume(restored(driver.machine.state))


def test_heartbeats_change_nothing_durable() -> None:
    driver, other = busy(), busy()
    other.machine.members.renew(A, other.now_ms + 5)
    assert other.machine.state != driver.machine.state
    assert durable_part(other.machine.state) == durable_part(driver.machine.state)
    driver.hello(A)
    assert durable_part(other.machine.state) != durable_part(driver.machine.state)


@pytest.mark.parametrize("blob", [b"", b"\x80", b"\xc1", b"\xff" * 9])
def test_bytes_that_are_no_state_are_refused(blob: bytes) -> None:
    with pytest.raises(StorageError, match="expected a snapshot of a run's state"):
        decode_state(blob)
