"""Promises of the pull policy: which pulls begin, which move, and which stay."""

from dataclasses import replace

import pytest

from node.gossip.machine import events
from node.gossip.machine.payloads import Payload
from node.gossip.machine.pull_policy import (
    DEADLINE_DOUBLINGS_MAX,
    SLOWNESS_MAX,
    WAIT_MS,
    WITHDRAWN_MS,
    PullPolicy,
)
from node.gossip.machine.rounds import MissingPayload
from node.gossip.machine.sources import RATE_ASSUMED, Sources
from protocol.ids import Digest, PeerId
from tests.node.gossip.machine.names import LIMITS, OWN, PEERS, SIZE, A, B, C, X, Y, Z, blob_digest

DEADLINE_MS = LIMITS.stall_ms + SLOWNESS_MAX * 1000 * SIZE // RATE_ASSUMED
"""The first deadline of a payload while no source is measured."""


class Fixture:
    """A policy over unmeasured sources, with what is missing."""

    def __init__(self) -> None:
        self.sources = Sources(OWN)
        self.sources.set_peers(PEERS)
        self.policy = PullPolicy(LIMITS, self.sources)
        self.missing: dict[Digest, MissingPayload] = {}

    def lack(self, digest: Digest, *holders: PeerId, size: int = SIZE) -> MissingPayload:
        missing = MissingPayload(7, digest, Payload(size, holders=set(holders)))
        self.missing[digest] = missing
        return missing

    def pull(self, digest: Digest, *holders: PeerId, now_ms: int = 0, size: int = SIZE) -> PeerId:
        """Begin a pull from the first of these holders; the others become holders after that."""
        missing = self.lack(digest, holders[0], size=size)
        (effect,) = self.policy.begin([missing], now_ms)
        assert isinstance(effect, events.Pull)
        missing.payload.holders.update(holders)
        return effect.source

    def arrive(self, digest: Digest, source: PeerId, *at: tuple[int, int]) -> None:
        """Bytes of a pull arrive: (bytes, when)."""
        for size, now_ms in at:
            self.policy.progressed(events.Progressed(digest, source, size), now_ms)

    def move(self, digest: Digest, now_ms: int) -> list[events.Effect]:
        return self.policy.move([self.missing[digest]], now_ms)

    def switch(self, holder: PeerId, now_ms: int) -> list[events.Effect]:
        pulled = [self.missing[digest] for digest in self.policy]
        return self.policy.switch_to_idle(holder, pulled, now_ms)


@pytest.fixture
def pulls() -> Fixture:
    return Fixture()


# ---- beginning


def test_pulls_begin_in_the_given_order_while_there_is_room(pulls: Fixture) -> None:
    missing = [pulls.lack(blob_digest(number), PEERS[number % 4]) for number in range(6)]
    begun = pulls.policy.begin(missing, 0)
    assert [effect.digest for effect in begun if isinstance(effect, events.Pull)] == [
        blob_digest(number) for number in range(LIMITS.pulls_max)
    ]
    assert not pulls.policy.room
    assert pulls.policy.begin(missing[4:], 0) == []


def test_no_source_serves_more_pulls_at_once_than_allowed(pulls: Fixture) -> None:
    missing = [pulls.lack(digest, A) for digest in (X, Y, Z)]
    assert len(pulls.policy.begin(missing, 0)) == LIMITS.pulls_per_peer
    assert pulls.policy.sources == {X: A, Y: A}


def test_a_payload_of_two_rounds_is_pulled_once(pulls: Fixture) -> None:
    missing = pulls.lack(X, A, B)
    assert len(pulls.policy.begin([missing, missing._replace(round=8)], 0)) == 1


def test_a_pull_states_whether_the_size_binds_its_source(pulls: Fixture) -> None:
    offered = pulls.lack(X, A)
    wanted = MissingPayload(7, Y, Payload(SIZE, wanted=True, replayed=True, holders={B}))
    assert pulls.policy.begin([offered, wanted], 0) == [
        events.Pull(A, X, SIZE, 7, exact=True),
        events.Pull(B, Y, SIZE, 7, exact=False, replayed=True),
    ]


# ---- ends


def test_the_end_of_a_pull_counts_only_from_its_present_source(pulls: Fixture) -> None:
    pulls.pull(X, A)
    assert not pulls.policy.ended(X, B)
    assert not pulls.policy.ended(Y, A)
    assert X in pulls.policy
    assert pulls.policy.ended(X, A)
    assert X not in pulls.policy


def test_a_drop_names_the_source_and_a_second_one_does_nothing(pulls: Fixture) -> None:
    pulls.pull(X, A)
    assert pulls.policy.drop(X) == [events.Drop(A, X)]
    assert pulls.policy.drop(X) == []


def test_bytes_from_a_former_source_do_not_end_the_wait(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    pulls.arrive(X, B, (1, WAIT_MS))
    assert pulls.move(X, WAIT_MS) == [events.Withdraw(A, X)], "it waits at A"


# ---- moving a waiting pull


def test_a_waiting_pull_moves_to_a_better_holder_once_it_has_waited_long_enough(
    pulls: Fixture,
) -> None:
    pulls.pull(X, A, B)
    assert pulls.move(X, WAIT_MS - 1) == []
    assert pulls.move(X, WAIT_MS) == [events.Withdraw(A, X)]
    assert pulls.move(X, WAIT_MS + 1) == [], "it is moving already"


def test_a_waiting_pull_stays_where_no_other_peer_holds_the_payload(pulls: Fixture) -> None:
    pulls.pull(X, A)
    assert pulls.move(X, 100 * DEADLINE_MS) == []


def test_a_pull_does_not_move_between_equal_queues(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    pulls.pull(Y, B)
    assert pulls.move(X, WAIT_MS) == []


def test_a_source_that_is_left_counts_as_no_faster_than_the_wait_there(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    pulls.move(X, WAIT_MS)
    assert pulls.sources.rate(A) == 1000 * SIZE // WAIT_MS


def test_a_pull_from_a_peer_that_has_left_the_run_moves(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    pulls.pull(Y, B)
    pulls.sources.set_peers([B, C])
    assert pulls.move(X, WAIT_MS) == [events.Withdraw(A, X)]


# ---- moving an arriving pull


@pytest.mark.parametrize(("rate", "moves"), [(4 * 10_000, False), (4 * 10_000 + 4, True)])
def test_an_arriving_pull_moves_to_a_holder_more_than_four_times_as_fast(
    pulls: Fixture, rate: int, moves: bool
) -> None:
    pulls.sources.succeeded(B, rate)
    pulls.pull(X, A, B, size=10**5)
    pulls.arrive(X, A, (1000, 0), (10_000, 1000))
    assert pulls.move(X, 1000) == ([events.Withdraw(A, X)] if moves else [])


def test_a_slow_pull_stays_while_all_pulls_together_are_fast(pulls: Fixture) -> None:
    pulls.sources.succeeded(B, 100_000)
    pulls.pull(X, A, B, size=10**5)
    pulls.pull(Y, C, size=10**5)
    for digest, source, size in ((X, A, 100), (Y, C, 50_000)):
        pulls.arrive(digest, source, (1, 0), (size, 1000))
    assert pulls.move(X, 1000) == []


def test_a_pull_whose_first_bytes_alone_have_come_does_not_move(pulls: Fixture) -> None:
    pulls.sources.succeeded(B, 10**9)
    pulls.pull(X, A, B)
    pulls.arrive(X, A, (1, WAIT_MS))
    assert pulls.move(X, WAIT_MS) == []


def test_a_source_that_began_in_spite_of_a_withdrawal_can_be_withdrawn_again(
    pulls: Fixture,
) -> None:
    pulls.sources.succeeded(B, 10**6)
    pulls.pull(X, A, B)
    assert pulls.move(X, WAIT_MS) == [events.Withdraw(A, X)]
    pulls.arrive(X, A, (1, 1000), (1, 1500))
    assert pulls.move(X, 1500) == [events.Withdraw(A, X)]


def test_a_source_that_neither_begins_nor_ends_a_pull_is_left_and_then_at_once(
    pulls: Fixture,
) -> None:
    pulls.policy = PullPolicy(replace(LIMITS, stall_ms=60_000), pulls.sources)
    pulls.pull(X, A, B)
    assert pulls.move(X, WAIT_MS) == [events.Withdraw(A, X)]
    ignored_ms = WAIT_MS + WITHDRAWN_MS
    assert pulls.move(X, ignored_ms - 1) == []
    left = [events.Drop(A, X), events.Pull(B, X, SIZE, 7, exact=True)]
    assert pulls.move(X, ignored_ms) == left
    later_ms = ignored_ms + 60_000  # it has paused for its failure
    assert pulls.pull(Y, A, B, now_ms=later_ms) == A, "the only holder that was known"
    assert pulls.move(Y, later_ms + 1)[0] == events.Drop(A, Y)
    pulls.sources.succeeded(A, 10**6)
    assert pulls.pull(Z, A, B, now_ms=later_ms) == A
    assert pulls.move(Z, later_ms + 1) == []


def test_a_pull_does_not_go_from_one_silent_source_to_another(pulls: Fixture) -> None:
    for source in (A, B):
        pulls.sources.failed(source, 0, silent=True)
    assert pulls.pull(X, A, B, now_ms=60_000) == A
    assert pulls.move(X, 60_000 + WAIT_MS) == []


# ---- deadlines


def test_a_pull_that_is_overdue_is_dropped_for_any_other_source(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    pulls.pull(Y, B)
    pulls.arrive(X, A, (1, 0))
    assert pulls.move(X, LIMITS.stall_ms - 1) == []
    assert pulls.move(X, LIMITS.stall_ms) == [
        events.Drop(A, X),
        events.Pull(B, X, SIZE, 7, exact=True),
    ]


@pytest.mark.parametrize(
    ("attempts", "doublings"), [(0, 0), (1, 1), (8, 8), (DEADLINE_DOUBLINGS_MAX + 1, 8)]
)
def test_each_further_attempt_has_twice_the_time_up_to_a_bound(
    pulls: Fixture, attempts: int, doublings: int
) -> None:
    missing = pulls.lack(X, A)
    missing.payload.attempts = attempts
    pulls.policy.begin([missing], 0)
    assert missing.payload.attempts == attempts + 1
    pulls.pull(Y, B)  # an equal queue: only the deadline is a reason to go there
    missing.payload.holders.add(B)
    deadline_ms = DEADLINE_MS << doublings
    assert pulls.move(X, deadline_ms - 1) == []
    assert pulls.move(X, deadline_ms)[0] == events.Drop(A, X)


# ---- an idle holder


def test_one_waiting_pull_switches_to_an_idle_holder_unless_its_turn_comes_soon(
    pulls: Fixture,
) -> None:
    pulls.pull(X, A, C)
    assert pulls.switch(C, WAIT_MS - 1) == []
    assert pulls.switch(C, WAIT_MS) == [events.Withdraw(A, X, unless_soon=True)]
    assert pulls.missing[X].payload.idle_holder == C
    assert pulls.switch(C, WAIT_MS) == [], "it is moving already"


def test_the_longest_queue_is_left_first_by_the_oldest_of_its_pulls(pulls: Fixture) -> None:
    pulls.pull(Z, B, C, now_ms=0)
    pulls.pull(X, A, C, now_ms=1)
    pulls.pull(Y, A, C, now_ms=2)
    assert pulls.switch(C, 1000) == [events.Withdraw(A, X, unless_soon=True)]


def test_an_idle_peer_gets_nothing_if_it_is_no_source_no_holder_or_busy(pulls: Fixture) -> None:
    pulls.pull(X, A, B)
    assert pulls.switch(C, WAIT_MS) == [], "C does not hold it"
    pulls.sources.set_peers([A])
    assert pulls.switch(B, WAIT_MS) == [], "B has left"
    pulls.sources.set_peers(PEERS)
    for digest in (Y, Z):
        pulls.pull(digest, B, now_ms=WAIT_MS)
    assert pulls.switch(B, WAIT_MS) == [], "B serves two pulls"


def test_a_pull_does_not_switch_to_a_slower_holder_or_once_its_bytes_come(pulls: Fixture) -> None:
    pulls.sources.succeeded(A, 100_000)
    pulls.sources.succeeded(C, 1000)
    pulls.pull(X, A, C)
    assert pulls.switch(C, WAIT_MS) == []
    pulls.pull(Y, A, B)
    pulls.arrive(Y, A, (1, 0))
    assert pulls.switch(B, WAIT_MS) == []
