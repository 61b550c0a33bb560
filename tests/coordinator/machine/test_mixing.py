"""Rounds in which nodes mix parameters: both ends of an edge or none, and nobody is blamed for a
state of its own.
"""

from fractions import Fraction
from typing import Any

import pytest

from coordinator.machine.checkpoints.events import AskCheckpoint, RoomGiven
from coordinator.machine.events import Applied, AskResync, Evict, OpenRound, RecordDigest
from coordinator.state_snapshot import decode_state, encode_state
from protocol.codec.commits import Commit
from protocol.ids import PeerId
from protocol.mixing.consensus import PROJECTION_SIZE
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
    assert [entry.author for entry in commit.entries_for(C)] == [C, D]


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
    assert last.entries_for(PEERS[4]) == last.entries, "whoever missed it takes it too"
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
