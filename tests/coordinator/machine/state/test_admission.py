"""Whom a run admits: every key, keys with a token, keys on a list."""

import pytest

from coordinator.machine.events import acts
from coordinator.machine.events.acts import TokenShown
from coordinator.machine.events.effects import Admit, Refuse
from coordinator.machine.events.inputs import Heartbeat
from coordinator.machine.rules.orders import token_flaw
from coordinator.machine.screening import screened
from protocol.ids import PeerId, sha256
from tests.coordinator.machine.driver import A, B, C, D, Driver, E
from tests.coordinator.machine.rules.test_orders import NOW_S, objection, order

SECRET = sha256(b"open sesame")
OTHER = sha256(b"open barley")


def show(driver: Driver, peer: PeerId, digest: bytes = SECRET, shown_s: int = NOW_S) -> None:
    """A key shows a token, as the sequencer hands it on."""
    event = TokenShown(peer, digest, shown_s)  # type: ignore[arg-type]
    machine = driver.machine
    driver.tell(screened(event, machine))


def admits(driver: Driver, peer: PeerId) -> bool:
    effects = driver.hello(peer)
    assert (Admit(peer) in effects) != any(isinstance(each, Refuse) for each in effects)
    return Admit(peer) in effects


def with_token(*peers: PeerId, uses: int = 2, expires_s: int = 0, vouches: bool = False) -> Driver:
    driver = Driver(*peers)
    order(driver, acts.Token("t", SECRET, uses, expires_s, vouches))
    order(driver, acts.Admit("token"))
    return driver


def test_a_run_is_open_until_its_operator_says_otherwise() -> None:
    assert admits(Driver(A), B)


def test_a_key_without_a_token_is_refused_for_good_and_told_what_to_do() -> None:
    (refused,) = with_token(A).hello(B)
    assert isinstance(refused, Refuse)
    assert not refused.retry
    assert "--token" in refused.reason


def test_members_stay_when_the_rule_changes_and_may_come_back() -> None:
    driver = with_token(A)
    assert A in driver.machine.members.roster
    driver.wait(120_000)  # its lease ends
    assert A not in driver.machine.members.roster
    assert admits(driver, A)


def test_a_token_counts_keys_and_not_joins() -> None:
    driver = with_token(A, uses=2)
    for peer in (B, B, C, B):
        show(driver, peer)
    assert admits(driver, B)
    assert admits(driver, C)
    show(driver, D)
    assert not admits(driver, D)
    assert driver.machine.state.operator.admission.tokens["t"].uses == 2


def test_a_wrong_token_admits_nobody_and_is_not_journalled() -> None:
    driver = with_token(A)
    event = TokenShown(B, OTHER, NOW_S)
    machine = driver.machine
    assert screened(event, machine) == Heartbeat(B)
    driver.tell(event)
    assert not admits(driver, B)


def test_a_token_expires_by_the_time_at_which_it_is_shown() -> None:
    driver = with_token(A, uses=9, expires_s=NOW_S + 60)
    show(driver, B, shown_s=NOW_S + 59)
    show(driver, C, shown_s=NOW_S + 60)
    assert admits(driver, B)
    assert not admits(driver, C)


def test_a_revoked_token_admits_no_further_key_and_those_that_it_admitted_stay() -> None:
    driver = with_token(A, uses=9)
    show(driver, B)
    order(driver, acts.Revoke("t"))
    show(driver, C)
    assert admits(driver, B)
    assert not admits(driver, C)
    assert "no" in objection(driver, acts.Revoke("t"))


def test_a_vouching_token_gives_standing_even_to_a_key_that_is_admitted() -> None:
    driver = with_token(A, B, uses=1, vouches=True)
    show(driver, A)
    show(driver, B)
    assert driver.machine.members.standing.vouched == {A}


def test_a_list_admits_its_keys_and_vouched_ones_alone() -> None:
    driver = Driver(A)
    order(driver, acts.Token("t", SECRET, 9))
    order(driver, acts.Admit("list"))
    order(driver, acts.Allow(B))
    order(driver, acts.Vouch(C))
    show(driver, D)
    assert [admits(driver, peer) for peer in (B, C, D, E)] == [True, True, False, False]
    order(driver, acts.Disallow(B))
    driver.wait(120_000)
    assert not admits(driver, B)


def test_a_ban_is_stronger_than_a_token_and_a_list() -> None:
    driver = with_token(A)
    order(driver, acts.Allow(B))
    order(driver, acts.Ban(B))
    show(driver, B)
    assert not admits(driver, B)


def test_a_name_is_one_token() -> None:
    assert "revoke it first" in objection(with_token(A), acts.Token("t", OTHER))


@pytest.mark.parametrize(
    ("late_s", "words"),
    [(0, "0 s ago"), (119, "119 s ago"), (150, "2 minutes ago"), (10_000, "2 hours ago")],
)
def test_a_token_that_has_expired_says_how_long_ago_by_whose_clock(late_s: int, words: str) -> None:
    driver = with_token(A, expires_s=NOW_S)
    flaw = token_flaw(TokenShown(B, SECRET, NOW_S + late_s), driver.machine)
    assert f"the token t expired {words} by the coordinator's clock" in flaw
