"""A run whose newest state is lost goes on from a checkpoint, in virtual time."""

from coordinator.machine.events.effects import AskResync, Effect, RecordDigest, SkipRound
from coordinator.machine.events.inputs import Ready, RestartAsked
from coordinator.machine.machine import RunMachine
from coordinator.machine.screening import is_transient
from coordinator.state_snapshot import decode_state, durable_part, encode_state
from protocol.codec.chain import Restart, entry_digest
from protocol.ids import PeerId, sha256
from tests.coordinator.machine.driver import RUN, A, B, C, Driver, entries_of, of_kind
from tests.coordinator.machine.rules.test_head_state import LEASE_MS, beat, driver_of, lost, trained

SHA256 = sha256(b"parameters")
DIGEST = 2**64 - 5
HEAD = 2


def asked(*, forced: bool = False) -> RestartAsked:
    return RestartAsked(SHA256, DIGEST, forced)


def lost_run(newcomer: PeerId = B) -> Driver:
    """Three rounds of A, which is gone, and a newcomer that has waited for a lease."""
    driver = trained(A)
    driver.leave(A)
    driver.hello(newcomer)
    beat(driver, newcomer, LEASE_MS // 1000)
    assert lost(driver)
    return driver


def restarted(driver: Driver, *, forced: bool = False) -> list[Effect]:
    effects = driver.tell(asked(forced=forced))
    assert entries_of(Restart, effects), "the restart was not made"
    return effects


def ready(driver: Driver, peer: PeerId, round: int, digest: int, voids: int) -> list[Effect]:
    return driver.tell(Ready(peer, round, digest, voids=voids))


def test_the_restart_is_the_newest_entry_of_the_chain_and_the_next_commit_names_it() -> None:
    driver = lost_run()
    head = driver.machine.state.head
    (entry,) = entries_of(Restart, restarted(driver))
    assert (entry.round, entry.sha256, entry.state_digest) == (HEAD, SHA256, DIGEST)
    assert entry.previous == head
    assert driver.machine.state.head == entry_digest(entry)
    ready(driver, B, HEAD, DIGEST, voids=1)
    round = driver.machine.state.undecided[0].round
    driver.exchange(round, B)
    assert driver.commits[-1].commit.previous == entry_digest(entry)
    assert driver.commits[-1].commit.step == HEAD + 1, "the schedule goes on"


def test_while_a_member_may_hold_the_newest_state_only_force_restarts() -> None:
    driver = trained(A)
    head = driver.machine.state.head
    driver.hello(B)
    for _ in range(60):
        driver.machine.members.renew(A, driver.now_ms)
        beat(driver, B, 1)
    assert not entries_of(Restart, driver.tell(asked()))
    driver.part(A)
    assert not entries_of(Restart, driver.tell(asked()))
    assert driver.machine.state.head == head
    assert driver.member(A).state == "ready"
    restarted(driver, forced=True)
    assert driver.member(A).state == "catching up"


def test_a_run_without_a_commit_and_a_checkpoint_that_was_forced_before_are_no_reason() -> None:
    empty = driver_of(A)
    assert not entries_of(Restart, empty.tell(asked(forced=True)))
    driver = trained(A)
    restarted(driver, forced=True)
    assert not entries_of(Restart, driver.tell(asked(forced=True)))


def test_an_open_round_is_skipped_and_its_samples_are_leased_again() -> None:
    driver = trained(A)
    (undecided,) = driver.machine.state.undecided
    effects = restarted(driver, forced=True)
    assert [skip.round for skip in of_kind(SkipRound, effects)] == [undecided.round]
    assert driver.machine.state.decided_round == undecided.round
    assert not driver.machine.state.undecided
    leased = [share for each in undecided.assignments.values() for share in each.shares]
    assert driver.machine.state.order.returned == leased


def test_a_member_that_has_not_heard_of_the_restart_is_not_ready_and_votes_on_nothing() -> None:
    driver = lost_run()
    restarted(driver)
    driver.hello(A)
    for round, voids in ((HEAD, 0), (HEAD - 1, 0), (HEAD - 1, 1)):
        assert not of_kind(AskResync, ready(driver, A, round, 1000 + round, voids))
        assert driver.member(A).state == "catching up"
    effects = driver.apply(A, HEAD, digest=7)
    assert not of_kind(RecordDigest, effects)
    ready(driver, A, HEAD, DIGEST, voids=1)
    assert driver.member(A).state == "ready"


def test_what_was_reported_before_stays_on_record_and_verdicts_begin_anew() -> None:
    driver = lost_run()
    before = of_kind(RecordDigest, driver.effects)
    restarted(driver)
    ready(driver, B, HEAD, DIGEST, voids=1)
    driver.join(C)
    assert of_kind(RecordDigest, driver.effects) == before
    round = driver.machine.state.undecided[0].round
    driver.exchange(round, B)
    assert driver.apply(B, round, digest=99, voids=1)
    assert of_kind(RecordDigest, driver.effects)[-1].round == round
    assert not of_kind(AskResync, driver.effects)


def test_a_member_with_another_state_than_the_checkpoints_must_take_it_again() -> None:
    driver = lost_run()
    restarted(driver)
    (ask,) = of_kind(AskResync, ready(driver, B, HEAD, DIGEST + 1, voids=1))
    assert "not the checkpoint from which the run goes on after round 2" in ask.reason
    assert driver.member(B).state == "catching up"


def test_when_nobody_has_the_checkpoint_the_status_asks_for_a_node_that_has() -> None:
    driver = lost_run()
    restarted(driver)
    assert lost(driver) == ""
    beat(driver, B, LEASE_MS // 1000 + 1)
    assert "start a node with --restart-from CHECKPOINT" in lost(driver)
    assert SHA256.hex()[:16] in lost(driver)
    assert "no member has" in lost(driver)


def test_a_second_loss_can_be_cured_in_the_same_way() -> None:
    driver = lost_run()
    restarted(driver)
    ready(driver, B, HEAD, DIGEST, voids=1)
    round = driver.machine.state.undecided[0].round
    driver.exchange(round, B)
    driver.lapse(B)
    driver.hello(C)
    beat(driver, C, LEASE_MS // 1000)
    (entry,) = entries_of(Restart, restarted(driver))
    assert entry.round == round
    ready(driver, C, round, DIGEST, voids=2)
    assert driver.member(C).state == "ready"


def test_the_journal_folds_to_the_same_state_and_a_snapshot_keeps_it() -> None:
    driver = Driver(A, B, rounds={"quorum": 1, "copies_min": 0})
    seen: list[tuple[int, object]] = []
    handle = driver.machine.handle

    def noted(event: object, now_ms: int) -> list[Effect]:
        effects = handle(event, now_ms)  # type: ignore[arg-type]
        if not is_transient(event, effects):  # type: ignore[arg-type]
            seen.append((now_ms, event))
        return effects

    copy = decode_state(encode_state(driver.machine.state))
    driver.machine.handle = noted  # type: ignore[method-assign]
    driver.exchange(0, A, B)
    driver.tell(asked(forced=True))
    for peer in (A, B):
        driver.ready(peer, digest=DIGEST)
        ready(driver, peer, 0, DIGEST, voids=1)
    assert driver.member(A).state == "ready"
    again = RunMachine(driver.machine.spec, RUN)
    again.resume(copy)
    for at_ms, event in seen:
        again.handle(event, at_ms)  # type: ignore[arg-type]
    assert durable_part(again.state) == durable_part(driver.machine.state)
    assert len(again.state.restarts) == 1
    assert decode_state(encode_state(again.state)) == again.state
