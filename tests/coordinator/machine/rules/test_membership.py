"""The member list: leases, sessions, strikes, warm-up."""

from dataclasses import replace

import pytest

from coordinator.machine.events.effects import Admit, Effect, Evict, Refuse, TellMembers
from coordinator.machine.events.inputs import (
    Disconnected,
    Event,
    Heartbeat,
    Joined,
    Lapsed,
    Left,
    LinksMeasured,
    Ready,
)
from coordinator.machine.rules import joining, membership, reporting
from coordinator.machine.state.membership import (
    FIRST_STEP_MS,
    LAPSES_KEPT_LEASES,
    LOST_TOGETHER_MS,
)
from coordinator.machine.state.run import Run
from protocol.ids import PeerId
from protocol.mixing.link_report import MeasuredLink
from protocol.runfile import MembershipSpec
from tests.coordinator.machine.driver import RUN, A, B, C, D, run_spec

SPEC = MembershipSpec(members_max=2, lease_ms=1000, heartbeat_ms=100, strikes_to_mute=3)

LATER_MS = FIRST_STEP_MS
"""A time after the first step of every member."""


def hello(peer: PeerId, address: str = "10.0.0.1:1") -> Joined:
    return Joined(peer, (address,), "name", "hardware", "software")


def run_of(*peers: PeerId, spec: MembershipSpec = SPEC) -> Run:
    run = Run(run_spec(membership=spec.model_dump()), RUN)
    for peer in peers:
        tell(run, hello(peer), 0)
    return run


def tell(run: Run, event: Event, now_ms: int) -> list[Effect]:
    match event:
        case Joined():
            return joining.take(event, run, now_ms)
        case Ready():
            return reporting.take(event, run, now_ms)
        case Heartbeat() | LinksMeasured() | Disconnected() | Left() | Lapsed():
            return membership.take(event, run, now_ms)
    raise AssertionError(event)


def test_a_hello_admits_a_member_and_tells_the_others() -> None:
    run = run_of()
    members = run.members
    assert tell(run, hello(A), 0) == [Admit(A), TellMembers(came=(A,))]
    member = members.get(A)
    assert member is not None
    assert (member.state, member.round, member.lease_until_ms, member.joined_ms) == (
        "catching up",
        -1,
        1000,
        0,
    )
    assert members.ready() == []


def test_a_full_run_refuses_with_its_size_and_keeps_no_trace() -> None:
    run = run_of(A, B)
    members = run.members
    assert tell(run, hello(C), 0) == [Refuse(C, "the run is full: 2 members", retry=True)]
    assert members.get(C) is None


def test_a_member_of_a_full_run_may_open_a_new_session() -> None:
    run = run_of(A, B)
    assert tell(run, hello(A), 0) == [Admit(A)]


def test_a_place_is_free_after_a_goodbye() -> None:
    run = run_of(A, B)
    assert tell(run, Left(B, "done"), 0) == [TellMembers(gone=(B,))]
    assert tell(run, hello(C), 0) == [Admit(C), TellMembers(came=(C,))]


def test_a_new_session_keeps_the_record_and_takes_the_new_address() -> None:
    run = run_of(A)
    members = run.members
    members.note_ready(members.roster[A], 3, 0)
    members.note_late(A, LATER_MS)
    tell(run, hello(A, "10.0.0.2:2"), 500)
    member = members.get(A)
    assert member is not None
    assert (member.state, member.strikes, member.addresses, member.lease_until_ms) == (
        "catching up",
        1,
        ("10.0.0.2:2",),
        1500,
    )


@pytest.mark.parametrize("at_ms", [999, 1000])
def test_a_lease_ends_exactly_at_its_time(at_ms: int) -> None:
    assert run_of(A).members.check_leases(at_ms) == ([A] if at_ms == 1000 else [])


def test_a_lost_session_keeps_lease_and_place_but_is_not_ready() -> None:
    run = run_of(A, B)
    members = run.members
    for peer in (A, B):
        members.note_ready(members.roster[peer], 0, 0)
    assert tell(run, Disconnected(A), 10) == []
    assert (
        [peer for peer in (A, B) if members.live(peer)],
        [member.peer for member in members.ready()],
        len(members),
    ) == ([B], [B], 2)
    assert tell(run, hello(C), 10) == [Refuse(C, "the run is full: 2 members", retry=True)]
    assert members.check_leases(1000) == [A, B]
    tell(run, hello(A), 20)
    assert members.live(A)


def test_a_renewal_moves_the_lease() -> None:
    run = run_of(A, B)
    members = run.members
    tell(run, Heartbeat(A), 900)
    assert members.check_leases(1000) == [B]
    assert members.next_lapse_ms() == 1000
    assert members.check_leases(1900) == [A, B]


def test_a_lapsed_node_is_missing_until_it_comes_back() -> None:
    run = run_of(A, B)
    members = run.members
    tell(run, Lapsed(A), 1000)
    tell(run, Lapsed(B), 1500)
    assert members.missing(1000) == [A, B]
    assert members.missing(1001) == [B]
    tell(run, hello(B), 1600)
    assert members.missing(0) == [A]


def test_an_old_lapse_is_forgotten_when_another_comes() -> None:
    run = run_of(A, B)
    members = run.members
    tell(run, Lapsed(A), 1000)
    tell(run, Lapsed(B), 1000 + LAPSES_KEPT_LEASES * SPEC.lease_ms)
    assert members.missing(0) == [A, B]
    tell(run, hello(B), 9000)
    tell(run, Lapsed(B), 9000)
    assert members.missing(0) == [B]


def test_the_time_of_the_next_lapse_follows_renewals_only_when_leases_are_checked() -> None:
    run = run_of(A)
    members = run.members
    assert members.next_lapse_ms() == 1000
    members.renew(A, 500)
    assert members.next_lapse_ms() == 1000  # a lower bound
    assert members.check_leases(1000) == []
    assert members.next_lapse_ms() == 1500


def test_a_lapse_evicts_once_with_the_reason() -> None:
    run = run_of(A)
    members = run.members
    assert tell(run, Lapsed(A), 1000) == [Evict(A, "silent for 1 s"), TellMembers(gone=(A,))]
    assert tell(run, Lapsed(A), 1000) == []
    assert members.next_lapse_ms() is None


@pytest.mark.parametrize(
    "event", [Heartbeat(C), Ready(C, 0, 0), Left(C, ""), Lapsed(C), Disconnected(C)]
)
def test_a_stranger_changes_nothing(event: Event) -> None:
    run = run_of(A)
    members = run.members
    assert tell(run, event, 0) == []
    members.renew(C, 0)
    members.note_late(C, LATER_MS)
    members.note_punctual(C)
    members.set_back(C)
    assert [member.peer for member in members] == [A]


def test_a_restart_gives_everyone_a_whole_lease() -> None:
    run = run_of(A, B)
    members = run.members
    members.restart(40_000, 50_000)
    assert {member.lease_until_ms for member in members} == {51_000}


def test_only_those_that_were_away_before_count_as_away_after_a_restart() -> None:
    """A coordinator that ends in good order loses every session first."""
    run = run_of(A, B, C, spec=SPEC.model_copy(update={"members_max": 3}))
    members = run.members
    tell(run, Disconnected(A), 10_000)
    tell(run, Disconnected(B), 10_000 + LOST_TOGETHER_MS)
    members.restart(10_001 + LOST_TOGETHER_MS, 60_000)
    assert [peer for peer in (A, B, C) if members.live(peer)] == [B, C]
    tell(run, hello(A), 60_500)
    assert members.live(A)


def test_a_second_word_of_the_same_loss_changes_nothing() -> None:
    """It is not journalled, so a replay would lack it."""
    run = run_of(A, B)
    members = run.members
    tell(run, Disconnected(A), 10_000)
    tell(run, Disconnected(A), 10_001 + LOST_TOGETHER_MS)
    members.restart(10_001 + LOST_TOGETHER_MS, 60_000)
    assert not members.live(A)


def test_members_are_in_the_order_of_their_ids() -> None:
    run = run_of(B, A)
    members = run.members
    assert [member.peer for member in members] == [A, B]
    assert len(members) == 2


def test_a_key_is_kept_for_a_process_that_may_come_back() -> None:
    run = run_of()
    members = run.members
    tell(run, replace(hello(A), instance=1), 0)
    here, elsewhere = replace(hello(A), instance=2), replace(hello(A, "10.0.0.2:1"), instance=2)
    assert members.kept_for_another(here), "no session was lost: the coordinator was away"
    assert not members.kept_for_another(replace(here, instance=1))
    tell(run, Disconnected(A), 0)
    assert not members.kept_for_another(here), "its successor, after a kill"
    assert not members.kept_for_another(replace(hello(A, "10.0.0.1:9"), instance=2))
    assert members.kept_for_another(elsewhere), "a copy, while the line of the node is broken"
    tell(run, Lapsed(A), 2000)
    assert not members.kept_for_another(elsewhere)


def test_a_process_that_did_not_say_which_it_is_keeps_no_key() -> None:
    run = run_of(A)
    members = run.members
    assert not members.kept_for_another(replace(hello(A), instance=2))


def test_strikes_mute_at_the_limit_and_one_punctual_round_frees() -> None:
    run = run_of(A)
    members = run.members
    member = members.get(A)
    assert member is not None
    for _ in range(2):
        members.note_late(A, LATER_MS)
    assert members.muted_reason(member) == ""
    for _ in range(2):
        members.note_late(A, LATER_MS)
    assert members.muted_reason(member) == "late in 3 rounds: counted again after a punctual one"
    members.note_punctual(A)
    assert members.muted_reason(member) == ""


def test_the_first_step_of_a_member_shrinks_its_share_and_never_mutes_it() -> None:
    run = run_of(A)
    members = run.members
    members.note_ready(members.roster[A], 0, 5000)
    member = members.get(A)
    assert member is not None
    for _ in range(10):
        members.note_late(A, 5000 + FIRST_STEP_MS - 1)
    assert (member.strikes, members.muted_reason(member)) == (2, "")
    members.note_ready(members.roster[A], 0, 90_000)  # a new session begins no new first step
    members.note_late(A, 5000 + FIRST_STEP_MS)
    assert member.strikes == 3
    assert members.muted_reason(member)


def test_a_member_that_has_announced_is_in_its_first_step_no_more() -> None:
    run = run_of(A)
    members = run.members
    members.note_ready(members.roster[A], 0, 0)
    member = members.get(A)
    assert member is not None
    members.note_punctual(A)
    for _ in range(3):
        members.note_late(A, 1000)
    assert members.muted_reason(member)


def test_a_member_that_is_set_back_is_not_ready() -> None:
    run = run_of(A)
    members = run.members
    members.note_ready(members.roster[A], 5, 0)
    assert [member.peer for member in members.ready()] == [A]
    members.set_back(A)
    assert members.ready() == []


def test_a_member_is_greedy_when_most_others_with_standing_say_so() -> None:
    run = run_of(A, B, C, D, spec=SPEC.model_copy(update={"members_max": 4}))
    members = run.members
    greedy, modest = MeasuredLink(D, 2, greedy=True), MeasuredLink(D, 2)

    def say(peer: PeerId, link: MeasuredLink) -> str:
        tell(run, LinksMeasured(peer, (link,)), 0)
        return members.remark(members.roster[D])

    assert say(A, greedy) == ""
    assert say(D, replace(greedy, peer=A)) == "", "one says so of another, and is not heard alone"
    assert say(B, greedy) == "it takes the same payloads again and again"
    assert not any(members.remark(members.roster[peer]) for peer in (A, B, C))
    assert say(B, modest) == ""
    assert say(C, greedy)
    tell(run, Left(C, ""), 0)
    assert say(D, modest) == "", "the word of one that went"


def test_links_to_a_member_break_when_most_others_and_no_single_one_say_so() -> None:
    run = run_of(A, B, C, spec=SPEC.model_copy(update={"members_max": 4}))
    members = run.members
    said = "links to it break again and again as it sends payloads: no round waits for them"

    def say(peer: PeerId, *breaking: PeerId) -> list[str]:
        links = tuple(MeasuredLink(other, 2, breaks=True) for other in breaking)
        tell(run, LinksMeasured(peer, links), 0)
        return [members.remark(member) for member in members]

    assert say(C, A, B) == ["", "", ""], "those that one says it of"
    assert say(A, C) == ["", "", ""]
    assert say(B, C) == ["", "", said]
    assert list(map(members.copies_are_awaited, (A, B, C))) == [True, True, False]
    assert say(B) == ["", "", ""]
    assert members.copies_are_awaited(C)
    say(B, C)
    tell(run, Left(B, ""), 0)
    assert say(A, C) == ["", ""], "a link of two has two ends"
    say(A)
    say(A, C)
    assert run.state.members.breaking[C] == {A}, "the word of one that went is forgotten"
