"""The gossip graph: the same for everyone, connected, shallow, new each round."""

import random
from itertools import pairwise

import pytest

from protocol.ids import PeerId
from protocol.neighbours import neighbours


def members_of(count: int) -> list[PeerId]:
    return [PeerId(f"{number * 7919 + 13:032x}") for number in range(count)]


def graph_of(round: int, members: list[PeerId], count: int) -> dict[PeerId, list[PeerId]]:
    return {member: neighbours(round, members, member, count) for member in members}


def hops(graph: dict[PeerId, list[PeerId]], start: PeerId) -> dict[PeerId, int]:
    reached, frontier = {start: 0}, [start]
    while frontier:
        member = frontier.pop(0)
        for other in graph[member]:
            if other not in reached:
                reached[other] = reached[member] + 1
                frontier.append(other)
    return reached


@pytest.mark.parametrize("size", range(2, 65))
def test_everyone_is_reached_from_everyone_in_every_round(size: int) -> None:
    members = members_of(size)
    for round in range(5):
        for count in (1, 2, 4):
            graph = graph_of(round, members, count)
            assert set(hops(graph, members[0])) == set(members)


@pytest.mark.parametrize("size", range(2, 65))
def test_with_an_even_count_neighbours_are_mutual(size: int) -> None:
    members = members_of(size)
    for round in range(5):
        for count in (2, 4, 6):
            if (size, count) == (8, 6):
                continue  # five doubling links, and one of the two at distance 3
            graph = graph_of(round, members, count)
            for member, others in graph.items():
                assert all(member in graph[other] for other in others)


@pytest.mark.parametrize("size", range(1, 65))
def test_neighbours_are_distinct_others_and_as_many_as_asked(size: int) -> None:
    members = members_of(size)
    for count in (1, 4, 8, 20):
        for member, others in graph_of(3, members, count).items():
            assert member not in others
            assert len(others) == len(set(others)) == min(count, size - 1)


@pytest.mark.parametrize(
    ("count", "size"), [(count, size) for count in (4, 8) for size in range(2, count + 2)]
)
def test_few_members_are_all_neighbours(count: int, size: int) -> None:
    members = members_of(size)
    for member, others in graph_of(0, members, count).items():
        assert set(others) == set(members) - {member}


def test_doubling_links_make_a_large_run_shallow() -> None:
    members = members_of(256)
    graph = graph_of(0, members, 16)
    assert max(hops(graph, members[0]).values()) <= 8


def test_the_order_and_the_repetition_of_members_do_not_matter() -> None:
    members = members_of(40)
    shuffled = members * 2
    random.Random(1).shuffle(shuffled)
    for member in members:
        assert neighbours(7, shuffled, member, 4) == neighbours(7, members, member, 4)


def test_each_round_has_another_graph() -> None:
    members = members_of(40)
    graphs = [graph_of(round, members, 4) for round in range(20)]
    assert all(earlier != later for earlier, later in pairwise(graphs))


def test_over_rounds_everybody_meets_everybody() -> None:
    members = members_of(16)
    met = {other for round in range(60) for other in neighbours(round, members, members[0], 4)}
    assert met == set(members[1:])


def test_with_links_to_all_the_graph_is_the_same() -> None:
    for size in (2, 5, 16, 40):
        members = members_of(size)
        for count in (1, 4, 16):
            assert neighbours(3, members, members[0], count, set(members)) == neighbours(
                3, members, members[0], count
            )


def test_who_has_no_link_is_replaced_by_the_nearest_who_has_one() -> None:
    members = members_of(40)
    by_hash = neighbours(3, members, members[0], 4)
    linked = set(members) - {by_hash[1]}
    replaced = neighbours(3, members, members[0], 4, linked)
    assert replaced[:3] == [by_hash[0], *by_hash[2:]]
    assert len(replaced) == 4
    assert replaced[3] in linked - set(by_hash)


def test_with_few_links_all_of_them_are_used() -> None:
    members = members_of(40)
    linked = {members[7], members[8]}
    assert set(neighbours(3, members, members[0], 4, linked)) == linked
    assert neighbours(3, members, members[0], 4, set()) == []


def test_a_stranger_and_a_lone_member_have_no_neighbours() -> None:
    members = members_of(5)
    assert neighbours(0, members[1:], members[0], 4) == []
    assert neighbours(0, members[:1], members[0], 4) == []
    assert neighbours(0, members, members[0], 0) == []


def test_the_graph_is_pinned() -> None:
    """A change of this literal is a change of the protocol: every party must derive the same
    graph.
    """
    members = members_of(8)
    numbers = [members.index(other) for other in neighbours(5, members, members[0], 4)]
    assert numbers == [5, 3, 6, 1]
