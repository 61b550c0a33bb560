"""The member list: whole lists, changes, relays beside members, malformed peer ids."""

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
    known = MemberList()
    known.update(told(member(ONE, "a:1", "b:2"), member(RELAY, "r:3", relay=True)))
    assert known.members == {ONE: ("a:1", "b:2")}
    assert known.relays == {RELAY: ("r:3",)}
    assert known.member_count == 1


def test_a_whole_list_replaces_what_was_known() -> None:
    known = MemberList()
    known.update(told(member(ONE), member(RELAY, relay=True)))
    known.update(told(member(TWO)))
    assert (dict(known.members), dict(known.relays)) == ({TWO: ()}, {})


def test_changes_leave_everybody_else_as_they_were() -> None:
    known = MemberList()
    known.update(told(member(ONE, "a:1"), member(RELAY, relay=True)))
    known.update(told(member(TWO, "b:2"), member(ONE, "a:9"), changes=True))
    assert known.members == {ONE: ("a:9",), TWO: ("b:2",)}
    known.update(told(gone=(ONE, RELAY), changes=True))
    assert (dict(known.members), dict(known.relays)) == ({TWO: ("b:2",)}, {})


def test_a_peer_that_goes_and_was_never_known_is_no_error() -> None:
    known = MemberList()
    known.update(told(gone=(ONE,), changes=True))
    assert not known.members


@pytest.mark.parametrize("wrong", [told(member("nobody")), told(gone=("nobody",), changes=True)])
def test_a_malformed_peer_id_is_blamed_on_the_coordinator(wrong: wire.Members) -> None:
    with pytest.raises(
        RemoteProtocolError, match="expected a peer id of 32 hexadecimal characters, got 'nobody'"
    ):
        MemberList().update(wrong)
