"""Promises of the table of links: one for each peer, the same at both ends; who leaves is told."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.links.link_table import (
    STRANGERS_MAX,
    UNPROVEN_MAX,
    Candidate,
    Departure,
    LinkTable,
    crowded_out,
    replaces,
)
from node.links.network import PeerAddress
from protocol.errors import RemoteProtocolError
from protocol.ids import PeerId

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


# ---- the table

OWN, PEER, OTHER = PeerId("55" * 16), PeerId("aa" * 16), PeerId("bb" * 16)
HERS = Candidate(instance=1, dialled=False, relayed=False)


def table_with(*links: str, kept: tuple[PeerId, ...] = ()) -> LinkTable[str]:
    """A table with these open links, of a host each."""
    table = LinkTable[str](OWN)
    for peer in kept:
        table.kept[peer] = PeerAddress(peer, ())
    for link in links:
        assert not table.opened(link, f"{link}:1", None)
    return table


def test_the_first_link_of_a_peer_is_its_own_until_it_ends() -> None:
    table = table_with("a")
    assert table.proven("a", PEER, HERS) == ()
    assert (table.link_with(PEER), table.peers, table.proven_links) == ("a", {PEER}, ["a"])
    assert table.unlinked("a", PEER)
    table.closed("a")
    assert (table.link_with(PEER), list(table.open)) == (None, [])


def test_of_two_links_one_leaves_when_its_work_is_done_and_its_end_unlinks_nobody() -> None:
    table = table_with("a", "b")
    table.proven("a", PEER, HERS)
    [gone] = table.proven("b", PEER, HERS)
    assert (gone.link, gone.finishes) == ("a", True)
    assert table.link_with(PEER) == "b"
    assert not table.unlinked("a", PEER)
    assert table.link_with(PEER) == "b"


def test_the_link_of_a_process_that_is_gone_leaves_at_once() -> None:
    table = table_with("a", "b")
    table.proven("a", PEER, HERS)
    [gone] = table.proven("b", PEER, Candidate(2, False, False))
    assert (gone.link, gone.finishes) == ("a", False)


def test_a_relayed_link_leaves_where_a_direct_one_is_open() -> None:
    table = table_with("a", "b")
    table.proven("a", PEER, HERS)
    assert table.proven("b", PEER, Candidate(1, False, True)) == [
        Departure("b", "another link between the two is open")
    ]
    assert table.link_with(PEER) == "a"


def test_another_peer_than_the_dialled_one_is_refused_and_takes_nobodys_link() -> None:
    table = table_with("a")
    table.proven("a", PEER, HERS)
    table.opened("b", "host:2", OTHER)
    with pytest.raises(RemoteProtocolError, match=r"expected bbbbbbbb.* at host:2, got aaaaaaaa"):
        table.proven("b", PEER, Candidate(2, True, False))
    assert table.link_with(PEER) == "a"


def test_strangers_have_few_links_and_kept_peers_always_have_theirs() -> None:
    strangers = [PeerId(f"{number:02x}" * 16) for number in range(STRANGERS_MAX + 1)]
    table = table_with(*strangers, "kept", kept=(PEER,))
    for peer in strangers[:-1]:
        assert table.proven(peer, peer, HERS) == ()
    assert table.proven("kept", PEER, HERS) == ()
    [refused] = table.proven(strangers[-1], strangers[-1], HERS)
    assert refused.link == strangers[-1]
    assert refused.reason == f"busy with {STRANGERS_MAX} links of others"


def test_a_pipe_too_many_takes_the_place_of_one_without_a_proof_and_dialled_ones_of_none() -> None:
    table = table_with("proven", *(f"host{number}" for number in range(UNPROVEN_MAX - 1)))
    table.proven("proven", PEER, HERS)
    assert table.opened("mine", "far:1", OTHER) == ()
    assert [gone.link for gone in table.opened("one more", "x:1", None)] == ["host0"]
    assert [gone.link for gone in table.opened("and another", "y:1", None)] == ["host1"]
