"""Promises of the choice between two links: both ends make the same one."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.links.link_choice import Candidate, crowded_out, replaces

LOW, HIGH = True, False
PAIRS = list(product([False, True], repeat=2))


def seen_by_the_other(link: Candidate) -> Candidate:
    return Candidate(link.instance, not link.dialled, link.relayed)


@pytest.mark.parametrize("relayed", PAIRS)
@pytest.mark.parametrize("dialled", PAIRS)
@pytest.mark.parametrize("own_is_lower", [LOW, HIGH])
def test_a_link_of_a_process_that_started_anew_always_replaces(
    relayed: tuple[bool, bool], dialled: tuple[bool, bool], own_is_lower: bool
) -> None:
    new, old = (Candidate(number, dialled[number], relayed[number]) for number in range(2))
    assert replaces(new, old, own_is_lower=own_is_lower)


@pytest.mark.parametrize("dialled", PAIRS)
@pytest.mark.parametrize("own_is_lower", [LOW, HIGH])
def test_a_direct_link_stays_whichever_end_dialled_it(
    dialled: tuple[bool, bool], own_is_lower: bool
) -> None:
    direct, relayed = Candidate(1, dialled[0], False), Candidate(1, dialled[1], True)
    assert replaces(direct, relayed, own_is_lower=own_is_lower)
    assert not replaces(relayed, direct, own_is_lower=own_is_lower)


@pytest.mark.parametrize("relayed", [False, True])
def test_an_end_that_dials_again_replaces_its_own_link(relayed: bool) -> None:
    for dialled, own_is_lower in PAIRS:
        link = Candidate(1, dialled, relayed)
        assert replaces(link, link, own_is_lower=own_is_lower)


@pytest.mark.parametrize("relayed", [False, True])
def test_of_two_links_that_crossed_the_lower_peer_id_keeps_the_one_that_it_dialled(
    relayed: bool,
) -> None:
    mine, theirs = Candidate(1, True, relayed), Candidate(1, False, relayed)
    assert replaces(mine, theirs, own_is_lower=LOW)
    assert not replaces(theirs, mine, own_is_lower=LOW)
    assert replaces(theirs, mine, own_is_lower=HIGH)
    assert not replaces(mine, theirs, own_is_lower=HIGH)


@pytest.mark.parametrize("one", PAIRS)
@pytest.mark.parametrize("two", PAIRS)
def test_both_ends_keep_the_same_link(one: tuple[bool, bool], two: tuple[bool, bool]) -> None:
    new, old = Candidate(1, *one), Candidate(1, *two)
    here = replaces(new, old, own_is_lower=LOW)
    there = replaces(seen_by_the_other(new), seen_by_the_other(old), own_is_lower=HIGH)
    assert here == there


def test_the_oldest_pipe_of_the_fullest_host_makes_room() -> None:
    assert crowded_out(["a", "b", "b", "c"], set()) == 1
    assert crowded_out(["a", "b"], set()) == 0


def test_hosts_of_members_make_room_last() -> None:
    assert crowded_out(["m", "m", "m", "x"], {"m"}) == 3
    assert crowded_out(["m", "n", "m"], {"m", "n"}) == 0


@given(st.lists(st.sampled_from("abcm"), min_size=1), st.sets(st.sampled_from("mn")))
def test_some_pipe_always_makes_room(hosts: list[str], members: set[str]) -> None:
    place = crowded_out(hosts, members)
    assert hosts[place] not in members or set(hosts) <= members
