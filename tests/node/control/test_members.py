"""Who takes part: lists, changes, relays beside members, names that are none."""

import pytest

from node.control.members import MemberList
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError

ONE, TWO, RELAY = ("1" * 32, "2" * 32, "f" * 32)


def member(peer: str, *addresses: str, relay: bool = False) -> wire.Member:
    return wire.Member(peer_id=peer, addresses=addresses, relay=relay)


def told(*members: wire.Member, gone: tuple[str, ...] = (), changes: bool = False) -> wire.Members:
    return wire.Members(members=members, gone=gone, changes=changes)


def test_members_and_relays_are_told_apart_each_with_its_addresses() -> None:
    roster = MemberList()
    roster.take(told(member(ONE, "a:1", "b:2"), member(RELAY, "r:3", relay=True)))
    assert roster.members == {ONE: ("a:1", "b:2")}
    assert roster.relays == {RELAY: ("r:3",)}


def test_a_whole_list_replaces_what_was_known() -> None:
    roster = MemberList()
    roster.take(told(member(ONE), member(RELAY, relay=True)))
    roster.take(told(member(TWO)))
    assert (dict(roster.members), dict(roster.relays)) == ({TWO: ()}, {})


def test_changes_leave_everybody_else_as_they_were() -> None:
    roster = MemberList()
    roster.take(told(member(ONE, "a:1"), member(RELAY, relay=True)))
    roster.take(told(member(TWO, "b:2"), member(ONE, "a:9"), changes=True))
    assert roster.members == {ONE: ("a:9",), TWO: ("b:2",)}
    roster.take(told(gone=(ONE, RELAY), changes=True))
    assert (dict(roster.members), dict(roster.relays)) == ({TWO: ("b:2",)}, {})


def test_who_went_and_was_never_known_is_no_error() -> None:
    roster = MemberList()
    roster.take(told(gone=(ONE,), changes=True))
    assert not roster.members


@pytest.mark.parametrize("wrong", [told(member("nobody")), told(gone=("nobody",), changes=True)])
def test_a_name_that_is_none_is_the_coordinator_s_fault(wrong: wire.Members) -> None:
    with pytest.raises(
        RemoteProtocolError, match="expected a peer id of 32 hexadecimal characters, got 'nobody'"
    ):
        MemberList().take(wrong)
