"""Rounds in which nodes mix parameters: both ends of an edge or none, and nobody is blamed for a
state of its own.
"""

from fractions import Fraction
from typing import Any

import pytest

from coordinator.machine.events.acts import Act, Finish, Pause, Resume, ordered
from coordinator.machine.events.acts import Checkpoint as CheckpointAct
from coordinator.machine.events.effects import (
    AskCheckpoint,
    AskResync,
    Evict,
    OpenRound,
    RecordDigest,
)
from coordinator.machine.events.inputs import Applied, Heartbeat, Left, LinksMeasured, RoomGiven
from coordinator.machine.rules.opening import LAST_MEANS_MAX
from coordinator.machine.rules.publishing import words
from coordinator.machine.screening import screened
from coordinator.machine.state.consensus import GROUP_ROUNDS
from coordinator.state_snapshot import decode_state, encode_state
from protocol.codec.commits import Commit, Mix
from protocol.ids import PeerId
from protocol.mixing.consensus import PROJECTION_SIZE
from protocol.mixing.link_report import MeasuredLink
from tests.coordinator.machine.driver import PEERS, A, B, C, D, Driver, of_kind, payload_digest

FOUR = (A, B, C, D)


def driver(*peers: PeerId, topology: str = "one-peer-exponential", **sections: Any) -> Driver:
    mixing = {"topology": topology, **sections.pop("mixing", {})}
    sections["membership"] = {"members_max": 16, **sections.get("membership", {})}
    return Driver(*peers, algorithm={"name": "gossip-adam", "mixing": mixing}, **sections)


def edges(commit: Commit) -> set[tuple[PeerId, PeerId]]:
    assert commit.mix is not None
    authors = [entry.author for entry in commit.entries]
    return {(authors[first], authors[second]) for first, second, _ in commit.mix.edges}


def neighbours(opened: OpenRound) -> dict[PeerId, tuple[PeerId, ...]]:
    return {each.peer: each.neighbours for each in opened.assignments}


def swap(driver: Driver, round: int, *pairs: tuple[PeerId, PeerId]) -> None:
    for first, second in pairs:
        driver.hold(first, round, [second])
        driver.hold(second, round, [first])


def test_the_graph_follows_from_the_round_and_its_members() -> None:
    run = driver(*FOUR)
    assert neighbours(run.opened[-1]) == {A: (B,), B: (A,), C: (D,), D: (C,)}
    assert run.opened[-1].among_neighbours
    assert not run.opened[-1].mean
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (A, B), (C, D))
    assert neighbours(run.opened[-1]) == {A: (C,), B: (D,), C: (A,), D: (B,)}


def test_a_round_is_decided_as_soon_as_every_edge_holds() -> None:
    run = driver(*FOUR)
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (A, B))
    run.hold(C, 0, [D])
    assert run.commits == []
    run.hold(D, 0, [C])
    assert edges(run.commits[-1].commit) == {(A, B), (C, D)}
    assert run.authors() == list(FOUR)


def test_an_edge_that_one_end_does_not_hold_fails_for_both() -> None:
    run = driver(*FOUR)
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (C, D))
    run.hold(A, 0, [B])  # B never says that it holds A's
    run.wait(3000)
    commit = run.commits[-1].commit
    assert edges(commit) == {(C, D)}
    assert run.authors() == list(FOUR), "their own steps count all the same"
    for peer in FOUR:
        assert sum(commit.shares_of(peer).values()) == 1
    assert commit.shares_of(A) == {A: Fraction(1)}
    assert [entry.author for entry in commit.needed_by(C)] == [C, D]


def test_a_neighbour_that_is_gone_is_not_waited_for() -> None:
    run = driver(*FOUR)
    for peer in (A, B, C):
        run.announce(peer, 0)
    swap(run, 0, (A, B))
    run.part(D)
    assert edges(run.commits[-1].commit) == {(A, B)}
    assert run.authors() == [A, B, C]


def test_a_killed_node_that_announced_keeps_its_edge_if_both_ends_said_so() -> None:
    run = driver(*FOUR)
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (A, B))
    run.part(A)
    swap(run, 0, (C, D))
    assert edges(run.commits[-1].commit) == {(A, B), (C, D)}


def test_the_last_step_and_every_period_take_the_mean_of_all() -> None:
    run = driver(*FOUR, schedule={"steps": 3}, mixing={"mean_every": 2})
    means = []
    for round in range(3):
        means.append(run.opened[-1].mean)
        assert run.opened[-1].among_neighbours is not means[-1]
        run.exchange(round, *FOUR)
    assert means == [False, True, True]
    assert [bool(each.commit.mix and each.commit.mix.mean) for each in run.commits] == means
    assert run.machine.state.end.finished
    last = run.commits[-1].commit
    assert last.needed_by(PEERS[4]) == last.entries, "whoever missed it takes it too"
    assert last.shares_of(A) == dict.fromkeys(FOUR, Fraction(1, 4))


def test_a_mean_is_one_of_members_that_all_hold_each_others_parameters() -> None:
    run = driver(*FOUR, schedule={"steps": 1})
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (A, B), (A, C), (B, C), (A, D))
    run.wait(3000)
    assert run.authors() == [A, B, C]


def test_a_mean_below_the_quorum_is_tried_again() -> None:
    run = driver(*FOUR, schedule={"steps": 1}, rounds={"quorum": 3})
    for peer in FOUR:
        run.announce(peer, 0)
    swap(run, 0, (A, B), (C, D))
    run.wait(3000)
    assert run.commits == []
    assert run.opened[-1].mean, "the last step is still to come"
    run.exchange(run.opened[-1].round, *FOUR)
    assert run.authors() == list(FOUR)


def test_a_round_of_the_mean_has_all_the_time_for_its_exchange_and_leaves_the_pace_alone() -> None:
    run = driver(A, B, rounds={"stretch": 4}, mixing={"mean_every": 2})
    run.exchange(0, A, B)
    pace, opened = run.machine.state.pace, run.opened[-1]
    assert opened.mean
    assert opened.instants.commit_by - opened.instants.publish_by == 4 * 1500
    assert pace.slot.exchange_ms < 1500, "pairs are quick"
    run.announce(A, 1)
    run.announce(B, 1)
    run.wait(5000)
    swap(run, 1, (A, B))
    assert run.machine.state.pace == pace


def test_the_equal_states_after_a_mean_are_recorded_and_published_and_no_others() -> None:
    run = driver(
        A, B, schedule={"steps": 4}, mixing={"mean_every": 3}, retention={"checkpoint_every": 1}
    )
    run.tell(RoomGiven(10**9, 3))
    for round in range(2):
        run.exchange(round, A, B)
        run.apply(A, round, 1)
        run.apply(B, round, 2)
    assert not of_kind(AskCheckpoint, run.effects), "members differ"
    assert not of_kind(RecordDigest, run.effects)
    run.exchange(2, A, B)
    asked = of_kind(AskCheckpoint, run.effects)
    assert asked[-1].round == 2
    run.apply(A, 2, 7)
    assert not of_kind(RecordDigest, run.effects), "one word is no agreement"
    run.apply(B, 2, 7)
    assert of_kind(RecordDigest, run.effects) == [RecordDigest(2, 7, 2, 0, b"")]
    assert run.machine.state.checkpoints.agreed(2) == 7


def test_the_snapshot_of_a_mean_is_recorded_by_the_word_of_those_that_agree() -> None:
    run = driver(*FOUR, mixing={"mean_every": 1, "exchange": "int8"})
    run.exchange(0, *FOUR)
    for peer, digest, sha256 in ((A, 7, b"a"), (B, 7, b"b"), (C, 8, b"c"), (D, 7, b"b")):
        run.tell(Applied(peer, 0, digest, sha256 * 32))
    assert of_kind(RecordDigest, run.effects)[-1] == RecordDigest(0, 7, 3, 1, b"b" * 32)
    run.exchange(1, *FOUR)
    assert run.machine.state.consensus.snapshots == {}


def test_every_topology_gives_doubly_stochastic_shares_whichever_edges_fail() -> None:
    for topology in ("ring", "hierarchical", "random-matching", "complete"):
        run = driver(*PEERS, topology=topology)
        for peer in PEERS:
            run.announce(peer, 0)
        for peer in PEERS[1:]:
            run.hold(peer, 0, [other for other in PEERS[1:] if other != peer])
        run.wait(3000)
        commit = run.commits[-1].commit
        columns = {
            peer: sum(commit.shares_of(other).get(peer, Fraction()) for other in PEERS)
            for peer in PEERS
        }
        assert set(columns.values()) == {Fraction(1)}, topology
        assert commit.shares_of(A) == {A: Fraction(1)}


def test_states_that_differ_blame_nobody_and_their_distance_is_shown() -> None:
    run = driver(A, B)
    run.exchange(0, A, B)
    for peer, at in ((A, 1.0), (B, -1.0)):
        report = (at, *(0.0,) * (PROJECTION_SIZE - 1))
        run.tell(Applied(peer, 0, int(peer, 16), b"", 0, report))
    run.exchange(1, A, B)
    assert not of_kind(AskResync, run.effects)
    assert not of_kind(Evict, run.effects)
    found = run.machine.state.consensus.document()
    assert (found["round"], found["members"]) == (0, 2)
    assert found["distance"] == pytest.approx(1.0)
    assert decode_state(encode_state(run.machine.state)) == run.machine.state


# ---- rounds that only mix


def report(run: Driver, round: int, *at: float, update: float = 1.0) -> None:
    """The members report that they are at these places, in the order of their ids."""
    for peer, place in zip(FOUR, at, strict=False):
        projection = (place, *(0.0,) * (PROJECTION_SIZE - 1))
        run.tell(Applied(peer, round, int(peer, 16), b"", 0, projection, update))


def test_past_the_critical_distance_the_next_round_only_mixes_and_then_they_train_again() -> None:
    run = driver(A, B, mixing={"critical": 1.5})
    run.exchange(0, A, B)
    report(run, 0, 2.0, -2.0)
    run.exchange(1, A, B)
    mixes = run.opened[-1]
    assert (mixes.round, mixes.only_mixes, mixes.mean) == (2, True, False)
    assert all(not each.shares for each in mixes.assignments)
    assert {each.peer for each in mixes.assignments} == {A, B}, "all of them mix"
    assert "2 updates from their mean after round 0, more than" in run.machine.state.reason
    loss, trained = run.machine.state.loss, run.machine.state.totals.samples_trained
    run.exchange(2, A, B)
    assert edges(run.commits[-1].commit) == {(A, B)}
    assert run.commits[-1].loss == loss == run.machine.state.loss
    assert run.machine.state.totals.samples_trained == trained
    assert not run.opened[-1].only_mixes, "the reports are from before it"
    assert all(each.shares for each in run.opened[-1].assignments)
    report(run, 2, 0.5, -0.5)
    run.exchange(3, A, B)
    assert not run.opened[-1].only_mixes
    assert run.machine.state.consensus.document()["only_mixed"] == 1


def test_members_that_stay_too_far_apart_mix_again_once_they_have_reported() -> None:
    run = driver(A, B, mixing={"critical": 1.5})
    run.exchange(0, A, B)
    report(run, 0, 2.0, -2.0)
    for round in (1, 2):
        run.exchange(round, A, B)
        report(run, round, 2.0, -2.0)
    run.exchange(3, A, B)
    kinds = [each.only_mixes for each in run.opened]
    assert kinds == [False, False, True, False, True]


@pytest.mark.parametrize(
    ("critical", "update", "at"),
    [(0.0, 1.0, (9.0, -9.0)), (1.5, 0.0, (9.0, -9.0)), (1.5, 1.0, (9.0,)), (1.5, 1.0, (1.4, -1.4))],
)
def test_no_round_only_mixes_without_a_reason(
    critical: float, update: float, at: tuple[float, ...]
) -> None:
    run = driver(A, B, mixing={"critical": critical})
    run.exchange(0, A, B)
    report(run, 0, *at, update=update)
    run.exchange(1, A, B)
    assert not run.opened[-1].only_mixes


def test_after_a_mean_nobody_is_apart() -> None:
    run = driver(A, B, mixing={"critical": 1.5, "mean_every": 2})
    run.exchange(0, A, B)
    report(run, 0, 2.0, -2.0)
    run.exchange(1, A, B)
    assert not run.opened[-1].only_mixes


# ---- a mean that the operator needs


def order(run: Driver, act: Act) -> None:
    run.tell(ordered(act, 0, run.machine.state.operator.head))


def test_a_run_that_its_operator_ends_takes_the_mean_first_and_nobody_trains_in_it() -> None:
    run = driver(*FOUR, retention={"checkpoint_every": 0})
    run.tell(RoomGiven(10**9, 3))
    run.exchange(0, *FOUR)
    order(run, Finish("enough"))
    assert not run.machine.state.end.finished
    for peer in FOUR:
        run.announce(peer, 1)
    swap(run, 1, *run.machine.state.undecided[0].edges)
    last = run.opened[-1]
    assert (last.round, last.mean, last.only_mixes) == (2, True, True)
    assert "takes the last mean" in run.machine.state.reason
    run.exchange(2, *FOUR)
    assert run.commits[-1].commit.mix == Mix(mean=True)
    assert run.machine.state.end.finished
    assert run.machine.state.reason == "the operator ended the run after 3 steps: enough"
    assert of_kind(AskCheckpoint, run.effects)[-1].round == 2, "the model is published"


def test_members_that_are_equal_already_need_no_further_mean() -> None:
    run = driver(A, B, mixing={"mean_every": 2})
    run.exchange(0, A, B)
    order(run, Finish(""))
    assert run.opened[-1].mean
    run.exchange(1, A, B)
    assert run.machine.state.end.finished
    assert len(run.opened) == 2


def test_a_paused_run_takes_its_last_mean_too() -> None:
    run = driver(A, B)
    order(run, Pause(""))
    run.exchange(0, A, B)
    assert len(run.opened) == 1
    order(run, Finish(""))
    assert run.opened[-1].mean
    run.exchange(1, A, B)
    assert run.machine.state.end.finished


def test_without_enough_members_or_after_three_tries_the_run_ends_without_a_mean() -> None:
    run = driver(A, B)
    run.exchange(0, A, B)
    order(run, Finish(""))
    run.part(A, B)
    run.lapse(A, B)
    run.wait(10_000)
    assert run.machine.state.end.finished
    run = driver(A, B)
    run.exchange(0, A, B)
    order(run, Finish(""))
    run.exchange(1, A, B)
    for _ in range(LAST_MEANS_MAX):
        run.announce(A, run.opened[-1].round)
        run.announce(B, run.opened[-1].round)
        run.wait(3000)  # nobody gets the other's payload
    assert run.machine.state.end.finished
    assert run.machine.state.consensus.apart


def test_a_checkpoint_that_the_operator_wants_makes_the_next_round_one_of_the_mean() -> None:
    run = driver(A, B, retention={"checkpoint_every": 3})
    run.tell(RoomGiven(10**9, 3))
    run.exchange(0, A, B)
    order(run, CheckpointAct())
    run.exchange(1, A, B)
    assert run.opened[-1].mean
    assert all(each.shares for each in run.opened[-1].assignments), "they train in it"
    run.exchange(2, A, B)
    assert of_kind(AskCheckpoint, run.effects)[-1].round == 2
    assert not run.opened[-1].mean


def test_a_wish_in_a_paused_run_waits_for_the_first_round_after_it() -> None:
    run = driver(A, B)
    run.tell(RoomGiven(10**9, 3))
    order(run, Pause(""))
    run.exchange(0, A, B)
    order(run, CheckpointAct())
    assert "once the run goes on" in words(run.machine.state)
    order(run, Resume())
    assert run.opened[-1].mean
    run.exchange(1, A, B)
    assert of_kind(AskCheckpoint, run.effects)[-1].round == 1


def test_a_payload_that_a_node_lacks_becomes_void_for_nobody() -> None:
    run = driver(A, B)
    run.exchange(0, A, B)
    run.lack(A, 0, B)
    run.lack(B, 0, B)
    run.wait(200_000)
    assert run.voids == []


def test_the_pace_follows_the_time_of_edges() -> None:
    run = driver(*FOUR, rounds={"stretch": 4})
    for peer in FOUR:
        run.announce(peer, 0)
    run.wait(1200)
    swap(run, 0, (A, B), (C, D))
    assert run.machine.state.pace.slot.exchange_ms >= 1200 * 3 // 2


def test_the_rate_of_a_member_is_that_of_its_slowest_edge() -> None:
    run = driver(*FOUR)
    for peer in FOUR:
        run.announce(peer, 0, payload_bytes=1000)
    run.wait(400)
    swap(run, 0, (A, B))
    run.wait(400)
    swap(run, 0, (C, D))
    assert [run.member(peer).work.up_bit_s for peer in FOUR] == [20_000, 20_000, 10_000, 10_000]


def test_a_quorum_that_is_missing_skips_the_round() -> None:
    run = driver(A, B)
    run.announce(A, 0)
    run.announce(B, 0, digest=b"")
    run.wait(3000)
    assert run.commits == []
    assert run.skips[0].round == 0


def test_receipts_before_an_announcement_count() -> None:
    run = driver(A, B)
    run.hold(A, 0, [B])
    run.announce(A, 0)
    run.announce(B, 0)
    run.hold(B, 0, [A])
    assert edges(run.commits[-1].commit) == {(A, B)}
    assert run.commits[-1].commit.entries[0].digest == payload_digest(A, 0)


# ---- groups of measured links


def tell_links(run: Driver, *houses: tuple[PeerId, ...], peers: tuple[PeerId, ...] = FOUR) -> None:
    """Each member is two milliseconds from those of its house and sixty from all others."""
    for peer in peers:
        near = next(house for house in houses if peer in house)
        others = [other for other in peers if other != peer]
        fast, slow = (2, 10**9), (60, 10**7)
        links = (MeasuredLink(other, *(fast if other in near else slow)) for other in others)
        run.tell(LinksMeasured(peer, tuple(links)))


def partners(run: Driver, rounds: range) -> list[set[tuple[PeerId, ...]]]:
    """The edges of these rounds, all of which go well."""
    found = []
    for round in rounds:
        near = neighbours(run.opened[-1])
        found.append({tuple(sorted((peer, each[0]))) for peer, each in near.items() if each})
        run.exchange(round, *near)
    return found


@pytest.mark.parametrize("topology", ["hierarchical", "alternating-exponential-ring"])
def test_fast_groups_are_those_of_the_links_that_all_members_have_measured(topology: str) -> None:
    run = driver(*FOUR, topology=topology)
    assert partners(run, range(1)) == [{(A, B), (C, D)}], "pairs of ids before that"
    tell_links(run, (A, D), (B, C))
    inside = {(A, D), (B, C)}
    assert partners(run, range(1, 2))[0].isdisjoint(inside), "this round was open by then"
    assert partners(run, range(2, 3)) == [inside]
    assert partners(run, range(3, 4))[0].isdisjoint(inside)
    assert run.machine.state.consensus.document()["groups"] == [[A, D], [B, C]]
    assert decode_state(encode_state(run.machine.state)) == run.machine.state


def test_pairs_of_ids_stay_while_a_member_has_measured_nothing() -> None:
    run = driver(*FOUR, topology="hierarchical")
    tell_links(run, (A, C), (B,), peers=(A, B, C))
    assert partners(run, range(3))[2] == {(A, B), (C, D)}
    assert run.machine.state.consensus.groups_round == -1


def test_groups_stay_for_their_rounds_and_are_then_found_anew() -> None:
    run = driver(*FOUR, topology="hierarchical", mixing={"mean_every": 1000})
    tell_links(run, (A, C), (B, D))
    partners(run, range(1))
    tell_links(run, (A, D), (B, C))
    first = run.machine.state.consensus.groups_round
    partners(run, range(1, first + GROUP_ROUNDS - 1))
    assert run.machine.state.consensus.groups == ((A, C), (B, D)), "a graph lasts for its period"
    partners(run, range(first + GROUP_ROUNDS - 1, first + GROUP_ROUNDS))
    assert run.machine.state.consensus.groups == ((A, D), (B, C))


def test_a_member_that_comes_later_joins_a_group_and_one_that_goes_leaves_it() -> None:
    run = driver(*FOUR, topology="hierarchical")
    tell_links(run, (A, C), (B, D))
    partners(run, range(1))
    run.join(PEERS[4])
    partners(run, range(1, 2))
    assert set(neighbours(run.opened[-1])) == set(PEERS)
    run.part(A)
    round = run.opened[-1].round
    run.exchange(round, *PEERS[1:])
    assert sorted(neighbours(run.opened[-1])) == sorted(PEERS[1:])
    assert [sorted(group) for group in run.machine.state.consensus.groups] == [[A, C], [B, D]]


def test_topologies_without_groups_do_not_look_at_links() -> None:
    run = driver(*FOUR)
    tell_links(run, (A, C), (B, D))
    partners(run, range(2))
    assert run.machine.state.consensus.groups == ()


def test_only_a_members_news_of_its_links_is_kept_in_the_journal() -> None:
    run = driver(*FOUR)
    links = (MeasuredLink(B, 2, 7),)
    said = LinksMeasured(A, links)
    members = run.machine.members
    assert screened(said, run.machine) == said
    run.tell(said)
    assert members.roster[A].work.links == links
    assert screened(said, run.machine) == Heartbeat(A), "said before"
    stranger = LinksMeasured(PEERS[4], links)
    assert screened(stranger, run.machine) == Heartbeat(PEERS[4])
    assert run.tell(stranger) == []
    run.tell(Left(A, "asked to"))
    run.hello(A)
    assert members.roster[A].work.links == (), "a member that comes back measures anew"
