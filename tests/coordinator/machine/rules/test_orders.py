"""What the operator's orders do to a run."""

import msgspec
import pytest

from coordinator.machine.events import acts
from coordinator.machine.events.effects import (
    Admit,
    CommitRound,
    Effect,
    Evict,
    FinishRun,
    Notify,
    OpenRound,
    Refuse,
    TellMembers,
)
from coordinator.machine.rules import orders
from coordinator.machine.state.operator import NOTICES_KEPT
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from coordinator.status_document import status
from protocol.errors import LocalProtocolError
from protocol.ids import sha256
from protocol.sums.signed import SumSigned, WrongSum, wrong_sum_bytes
from tests.coordinator.machine.driver import PEERS, RUN, A, B, C, Driver, of_kind
from tests.coordinator.machine.rules.test_demotion import demote, reject

NOW_S = 1_700_000_000


def order(driver: Driver, act: acts.Act) -> list[Effect]:
    state = driver.machine.state
    assert orders.objection(act, driver.machine) == ""
    return driver.tell(acts.ordered(act, NOW_S, state.operator.head))


def objection(driver: Driver, act: acts.Act) -> str:
    return orders.objection(act, driver.machine)


# ---- what everybody is told


def test_the_status_tells_the_newest_acts_without_hosts_tokens_and_keys_of_the_list() -> None:
    driver = Driver(A, B)
    secret = acts.Token("friends", sha256(b"secret"), 20)
    for act in (
        acts.Announce("on Sunday"),
        acts.Rate(0.01),
        acts.Vouch(B),
        acts.Ban("192.0.2.7", "noise"),
        acts.Ban(C),
        secret,
        acts.Allow(C),
        acts.Extend(10),
    ):
        order(driver, act)
    told = status(driver.machine, [], driver.now_ms)["operator"]["newest"]
    assert [each["text"] for each in told] == [
        "set the largest learning rate to 0.01",
        f"vouch for {B}",
        "ban a host",
        "ban a node",
        "create a token for 20 keys",
        "put a node on the list",
        "extend the run by 10 steps",
    ]
    for _ in range(5):
        order(driver, acts.Pause("x"))
        order(driver, acts.Resume())
    assert len(driver.machine.state.operator.newest) == NOTICES_KEPT


# ---- pause, resume


def test_a_paused_run_decides_its_open_round_and_opens_no_other_and_members_stay() -> None:
    driver = Driver(A, B)
    order(driver, acts.Pause("new disk"))
    effects = driver.exchange(0, A, B)
    assert of_kind(CommitRound, effects)
    assert not of_kind(OpenRound, effects)
    assert driver.machine.state.reason == "paused by the operator: new disk"
    assert not of_kind(OpenRound, driver.hello(C) + driver.ready(C))
    assert set(driver.machine.members.roster) == {A, B, C}


def test_a_resumed_run_opens_its_round_at_once() -> None:
    driver = Driver(A, B)
    order(driver, acts.Pause())
    driver.exchange(0, A, B)
    (opened,) = of_kind(OpenRound, order(driver, acts.Resume()))
    assert opened.round == 1
    assert objection(driver, acts.Resume()) == "expected a paused run, found one that is not"


# ---- finish


def test_finish_ends_the_run_after_the_open_round_with_the_operators_reason() -> None:
    driver = Driver(A, B)
    driver.exchange(0, A, B)
    order(driver, acts.Finish("it is good enough"))
    assert not driver.machine.state.end.finished
    effects = driver.exchange(1, A, B)
    assert driver.machine.state.end.finished
    assert not of_kind(OpenRound, effects)
    for peer in (A, B):
        effects += driver.apply(peer, 1)
    (finished,) = of_kind(FinishRun, effects)
    assert finished.reason == "the operator ended the run after 2 steps: it is good enough"
    assert "has ended" in objection(driver, acts.Pause())


def test_finish_ends_a_run_without_an_open_round_at_once() -> None:
    driver = Driver()
    effects = order(driver, acts.Finish())
    assert [each.reason for each in of_kind(FinishRun, effects)] == [
        "the operator ended the run after 0 steps"
    ]


# ---- evict, ban


def test_an_evicted_member_is_told_why_and_waits_before_it_comes_back() -> None:
    driver = Driver(A, B, C)
    effects = order(driver, acts.Evict(C, "too hot", 60))
    told = "the operator removed this node: too hot; it may come back in 60 s"
    assert of_kind(Evict, effects) == [Evict(C, told)]
    assert of_kind(TellMembers, effects) == [TellMembers(gone=(C,))]
    assert driver.hello(C) == [Refuse(C, told, retry=True)]
    driver.wait(60_000)
    assert Admit(C) in driver.hello(C)


def test_an_open_round_does_not_wait_for_an_evicted_member() -> None:
    driver = Driver(A, B, C)
    driver.announce(A, 0)
    driver.announce(B, 0)
    driver.hold(A, 0, [B])
    driver.hold(B, 0, [A])
    effects = order(driver, acts.Evict(C))
    (commit,) = of_kind(CommitRound, effects)
    assert [entry.author for entry in commit.commit.entries] == [A, B]


def test_a_banned_member_goes_and_is_refused_for_good_until_the_ban_is_lifted() -> None:
    driver = Driver(A, B, C)
    why = "the operator of this run has banned this node: noise"
    assert of_kind(Evict, order(driver, acts.Ban(C, "noise"))) == [Evict(C, why)]
    driver.wait(10 * 60_000)
    assert driver.hello(C) == [Refuse(C, why)]
    order(driver, acts.Unban(C))
    assert Admit(C) in driver.hello(C)
    assert "no ban" in objection(driver, acts.Unban(C))


def test_a_banned_key_is_not_vouched_for_any_more() -> None:
    driver = Driver(A, B)
    order(driver, acts.Vouch(A))
    assert "already" in objection(driver, acts.Vouch(A))
    order(driver, acts.Ban(A))
    assert A not in driver.machine.members.standing.vouched


def test_bans_are_bounded() -> None:
    driver = Driver(A)
    driver.machine.state.operator.bans = {str(n): "" for n in range(orders.BANS_MAX)}
    assert "at most" in objection(driver, acts.Ban(A))


# ---- announce


def test_every_node_is_told_and_the_newest_notices_are_kept() -> None:
    driver = Driver(A)
    for number in range(20):
        text = f"update {number}"
        assert of_kind(Notify, order(driver, acts.Announce(text))) == [Notify(text)]
    notices = driver.machine.state.operator.notices
    assert [each.text for each in notices] == [f"update {number}" for number in range(12, 20)]


# ---- the chain of acts, and the journal


def test_an_act_that_does_not_follow_the_one_before_it_is_impossible() -> None:
    driver = Driver(A)
    first = acts.first_digest(RUN)
    order(driver, acts.Pause())
    with pytest.raises(LocalProtocolError, match="follows"):
        driver.machine.handle(acts.ordered(acts.Resume(), NOW_S, first), driver.now_ms)
    head = driver.machine.state.operator.head
    forged = acts.Ordered(acts.Resume(), NOW_S, head, first)
    with pytest.raises(LocalProtocolError, match="digest"):
        driver.machine.handle(forged, driver.now_ms)
    assert driver.machine.state.operator.paused == ""
    assert driver.machine.state.operator.acts == 1


def test_what_the_operator_did_outlives_a_restart() -> None:
    driver = Driver(A, B, C)
    for act in (
        acts.Pause("p"),
        acts.Evict(A, "e", 60),
        acts.Ban(B),
        acts.Ban("192.0.2.7"),
        acts.Announce("n"),
        acts.Token("t", b"d" * 32, 3),
        acts.Admit("token"),
        acts.Allow(PEERS[4]),
        acts.Vouch(PEERS[3]),
    ):
        order(driver, act)
    state = driver.machine.state
    assert durable_part(decode_state(encode_state(state))) == durable_part(state)
    operator = decode_state(encode_state(state)).operator
    assert operator == state.operator
    assert operator.acts == 9


def refuted() -> acts.Refute:
    signed = SumSigned(0, sha256(b"wrong"), bytes(32), bytes(64))
    return acts.Refute(A, wrong_sum_bytes(WrongSum(RUN, 3, signed, sha256(b"right"))))


def test_every_act_has_words_and_survives_the_journal() -> None:
    every = [
        acts.Pause("r"),
        acts.Resume(),
        acts.Finish(),
        acts.Checkpoint(),
        acts.Extend(7),
        acts.Rate(0.1),
        acts.Evict(A),
        acts.Ban("192.0.2.7", "r"),
        acts.Unban(A),
        acts.Vouch(A),
        demote(A, 0),
        reject(A, 0),
        refuted(),
        acts.Appoint(A),
        acts.Dismiss(A),
        acts.Announce("r"),
        acts.Admit("list"),
        acts.Allow(A),
        acts.Disallow(A),
        acts.Token("t", b"d" * 32),
        acts.Revoke("t"),
    ]
    assert len({type(act) for act in every}) == len(acts.Act.__args__)
    for act in every:
        event = acts.ordered(act, NOW_S, acts.first_digest(RUN))
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(event), type=acts.Ordered) == event
        assert acts.flaw(event, acts.first_digest(RUN)) == ""
        assert acts.words(act)
