"""Promises of the places for pipes that peers have opened."""

import secrets
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from node.transports.libp2p.accepted import PEER_PIPES_MAX, AcceptedPipes
from node.transports.libp2p.contact import Contact
from node.transports.libp2p.pipe import SocketPipe


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def pipe_from(host: str, stack: ExitStack, peer: str = "") -> SocketPipe:
    near, far = socket.socketpair()
    for each in (near, far):
        stack.callback(each.close)
    return SocketPipe(
        near, Contact(peer or secrets.token_hex(), f"/ip4/{host}/tcp/4001"), lambda _: None
    )


async def test_silent_pipes_of_a_crowded_network_make_room_for_everybody_else(
    stack: ExitStack,
) -> None:
    accepted = AcceptedPipes(8)
    member, newcomer = pipe_from("192.0.2.1", stack), pipe_from("198.51.100.1", stack)
    strangers = [pipe_from("192.0.2.1", stack) for _ in range(9)]
    stack.enter_context(accepted.place(member))
    member.admit()
    for each in (*strangers[:3], newcomer, *strangers[3:]):
        stack.enter_context(accepted.place(each))
    assert [each.is_cut for each in strangers] == [True] * 6 + [False] * 3
    assert (member.is_cut, newcomer.is_cut) == (False, False)
    assert accepted.cuts["place"] == 6


async def test_a_pipe_that_has_ended_leaves_its_place(stack: ExitStack) -> None:
    accepted = AcceptedPipes(4)
    for _ in range(9):
        with accepted.place(each := pipe_from("192.0.2.1", stack)):
            pass
        assert not each.is_cut


async def test_a_peer_that_opens_many_pipes_and_proves_no_key_loses_all_of_them(
    stack: ExitStack,
) -> None:
    accepted = AcceptedPipes(100)
    member = [pipe_from("192.0.2.1", stack, "member") for _ in range(PEER_PIPES_MAX + 1)]
    stranger = [pipe_from("192.0.2.1", stack, "stranger") for _ in range(PEER_PIPES_MAX + 1)]
    member[0].admit()
    places = [stack.enter_context(accepted.place(each)) for each in (*member, *stranger)]
    assert places == [True] * (2 * PEER_PIPES_MAX + 1) + [False]
    assert not any(each.is_cut for each in member)
    assert all(each.is_cut for each in stranger)
