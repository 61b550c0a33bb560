"""The member list as nodes are told it: whole, in pages, or as changes."""

from collections.abc import Iterable
from itertools import accumulate

from coordinator.machine.events.effects import TellMembers
from coordinator.machine.events.inputs import Joined
from coordinator.machine.state.member import Member
from coordinator.machine.state.membership import Membership
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from protocol.limits import MESSAGE_BYTES_MAX

MEMBERS_PAGE_BYTES = 64 * 1024
"""Bytes of one page of the member list: some 600 members with usual addresses. A session whose
client does not read holds one page, not the list."""

LINE_OVERHEAD_BYTES = 8
"""Bytes that a line of a list adds to its message beyond its own."""


def member_pages(members: Membership, relays: Iterable[Joined] = ()) -> list[wire.Members]:
    """The whole member list, members sorted by id and then relays, in pages of some
    `MEMBERS_PAGE_BYTES`: the first replaces what a node knows, the others are changes. At least
    one page.
    """
    pages, size = [wire.Members()], 0
    listed = [member for member in members if member.listed]
    for line in (*map(_line, listed), *map(_relay_line, relays)):
        size += line.ByteSize()
        if size > MEMBERS_PAGE_BYTES and pages[-1].members:
            pages.append(wire.Members(changes=True))
            size = line.ByteSize()
        pages[-1].members.append(line)
    return pages


def members_message(members: Membership, relays: Iterable[Joined] = ()) -> wire.Members:
    """The member list as one message, in the order of `member_pages`: all relays, and the members
    that fit.
    """
    told = [_relay_line(relay) for relay in relays]
    left = MESSAGE_BYTES_MAX // 2 - sum(line.ByteSize() for line in told)
    lines = [_line(member) for member in members if member.listed]
    sizes = accumulate(line.ByteSize() + LINE_OVERHEAD_BYTES for line in lines)
    fitting = [line for line, size in zip(lines, sizes, strict=True) if size <= left]
    return wire.Members(members=fitting + told)


def relays_message(relays: Iterable[Joined], gone: PeerId | None) -> wire.CoordinatorMessage:
    """A change of the member list: all relays, and the one that went."""
    told = [_relay_line(relay) for relay in relays]
    members = wire.Members(members=told, gone=[gone] if gone else [], changes=True)
    return wire.CoordinatorMessage(members=members)


def changes_message(members: Membership, changes: Iterable[TellMembers]) -> wire.CoordinatorMessage:
    """Several changes of the member list as one message. To send the whole list at each join would
    cost a run of N members N cubed lines.
    """
    touched = {peer for change in changes for peer in (*change.came, *change.gone)}
    told = [
        _line(member) for peer in sorted(touched) if (member := members.get(peer)) and member.listed
    ]
    gone = sorted(peer for peer in touched if members.get(peer) is None)
    return wire.CoordinatorMessage(members=wire.Members(members=told, gone=gone, changes=True))


def _line(member: Member) -> wire.Member:
    return wire.Member(peer_id=member.peer, addresses=member.addresses)


def _relay_line(relay: Joined) -> wire.Member:
    return wire.Member(peer_id=relay.peer, addresses=relay.addresses, relay=True)
