"""Promises of a payload's record: holders, failures and their pauses, and when it is given up."""

import pytest

from node.gossip.machine.payloads import (
    ABSENCES,
    BACKOFF_FIRST_MS,
    BACKOFF_MAX_MS,
    Failures,
    Payload,
)
from tests.node.gossip.machine.names import SIZE, A, B, C


def test_the_pause_after_a_failure_doubles_up_to_a_bound() -> None:
    failures, pauses = Failures(), list[int]()
    for _ in range(7):
        failures.add(10_000)
        pauses.append(failures.retry_ms - 10_000)
    assert pauses[0] == BACKOFF_FIRST_MS
    assert pauses == [min(BACKOFF_FIRST_MS << n, BACKOFF_MAX_MS) for n in range(7)]
    assert pauses[-1] == BACKOFF_MAX_MS


def test_a_pause_is_over_at_its_very_end() -> None:
    failures = Failures()
    assert failures.is_over(0)
    failures.add(100)
    assert not failures.is_over(100 + BACKOFF_FIRST_MS - 1)
    assert failures.is_over(100 + BACKOFF_FIRST_MS)


def test_a_success_forgets_the_failures_and_the_length_of_the_pause() -> None:
    failures = Failures()
    failures.add(0)
    failures.add(0)
    failures.reset()
    assert (failures.count, failures.is_over(0)) == (0, True)
    failures.add(0)
    assert failures.retry_ms == BACKOFF_FIRST_MS


def test_a_peer_that_did_not_give_a_payload_is_no_holder_and_pauses() -> None:
    payload = Payload(SIZE, holders={A, B})
    payload.remove_holder(A, 0)
    assert payload.holders == {B}
    assert not payload.may_ask(A, BACKOFF_FIRST_MS - 1)
    assert payload.may_ask(A, BACKOFF_FIRST_MS)
    assert payload.may_ask(B, 0)


def test_a_new_offer_makes_a_peer_a_holder_again_without_a_pause() -> None:
    payload = Payload(SIZE)
    payload.remove_holder(A, 0)
    payload.add_holder(A)
    assert payload.holders == {A}
    assert payload.may_ask(A, 0)


@pytest.mark.parametrize(
    ("wanted", "held", "missing"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_a_payload_is_missing_when_a_commit_names_it_and_it_is_not_held(
    wanted: bool, held: bool, missing: bool
) -> None:
    assert Payload(SIZE, wanted=wanted, held=held).missing is missing


def test_a_payload_is_given_up_once_each_of_the_peers_failed_often_enough() -> None:
    payload = Payload(SIZE)
    assert not payload.kept_by_none(set()), "no peer was asked"
    for peer in (A, B):
        for _ in range(ABSENCES):
            assert not payload.kept_by_none({A, B})
            payload.remove_holder(peer, 0)
    assert payload.kept_by_none({A, B})
    assert not payload.kept_by_none({A, B, C}), "C was not asked"


def test_a_payload_that_one_peer_failed_to_give_is_given_up_when_no_peer_is_left() -> None:
    payload = Payload(SIZE)
    payload.remove_holder(A, 0)
    assert payload.kept_by_none(set())
