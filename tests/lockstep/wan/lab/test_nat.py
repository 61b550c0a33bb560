"""Home routers: what they let out, what they keep out, and that they do so port by port."""

import socket
from collections.abc import Iterator

import pytest

from lockstep.wan.lab.laboratory import Laboratory
from lockstep.wan.lab.nat import attribute, masquerade_messages, nested
from lockstep.wan.lab.topology import LabHome, Plan
from tests.lockstep.wan.lab.fixture import (
    PATIENCE_S,
    SILENCE_S,
    arrives,
    endpoint,
    heard,
    needs_ground,
)


def test_attributes_are_padded_and_say_their_own_length() -> None:
    assert attribute(1, b"abc") == b"\x07\0\x01\0abc\0"
    assert attribute(2, b"abcd") == b"\x08\0\x02\0abcd"
    assert nested(3, attribute(1, b"abc")) == b"\x0c\0\x03\x80\x07\0\x01\0abc\0"


def test_the_rules_name_both_sides_of_the_router() -> None:
    text = b"".join(body for _, body in masquerade_messages())
    for word in (b"masq", b"nat\0", b"filter\0", b"wan\0", b"ct\0", b"immediate\0"):
        assert word in text


@pytest.fixture(scope="module")
def lab() -> Iterator[Laboratory]:
    homes = (
        LabHome("house-a", nat="masquerade"),
        LabHome("house-b", nat="masquerade"),
        LabHome("public"),
        LabHome("stranger"),
    )
    with Laboratory(Plan(homes)) as laboratory:
        yield laboratory


def at(lab: Laboratory, name: str, opened: socket.socket) -> tuple[str, int]:
    """Where the internet sees a socket whose port its router kept."""
    return lab.public_address(name), opened.getsockname()[1]


@needs_ground
def test_a_home_reaches_a_public_computer_which_sees_its_router_with_the_same_port(
    lab: Laboratory,
) -> None:
    with endpoint(lab, "house-a") as inner, endpoint(lab, "public") as outer:
        inner.sendto(b"hello", at(lab, "public", outer))
        assert heard(outer, PATIENCE_S) == at(lab, "house-a", inner)
        outer.sendto(b"hello yourself", at(lab, "house-a", inner))
        assert heard(inner, PATIENCE_S) == at(lab, "public", outer)


@needs_ground
def test_unasked_packets_do_not_pass_the_router(lab: Laboratory) -> None:
    with endpoint(lab, "house-a") as inner, endpoint(lab, "public") as outer:
        assert not arrives(outer, inner, at(lab, "house-a", inner), SILENCE_S)
        # and having knocked in vain does not cost the home its port
        inner.sendto(b"hello", at(lab, "public", outer))
        assert heard(outer, PATIENCE_S) == at(lab, "house-a", inner)


@needs_ground
def test_a_port_that_is_open_to_one_is_closed_to_others(lab: Laboratory) -> None:
    with (
        endpoint(lab, "house-a") as inner,
        endpoint(lab, "public") as friend,
        endpoint(lab, "public") as other_port,
        endpoint(lab, "stranger") as stranger,
    ):
        assert arrives(inner, friend, at(lab, "public", friend), PATIENCE_S)
        assert not arrives(stranger, inner, at(lab, "house-a", inner), SILENCE_S)
        assert not arrives(other_port, inner, at(lab, "house-a", inner), SILENCE_S)
        assert arrives(friend, inner, at(lab, "house-a", inner), PATIENCE_S)


@needs_ground
def test_two_houses_hear_each_other_only_when_both_have_called(lab: Laboratory) -> None:
    with endpoint(lab, "house-a") as a, endpoint(lab, "house-b") as b:
        assert not arrives(a, b, at(lab, "house-b", b), SILENCE_S)
        assert arrives(b, a, at(lab, "house-a", a), PATIENCE_S)
        assert arrives(a, b, at(lab, "house-b", b), PATIENCE_S)


@needs_ground
def test_a_connection_goes_out_and_none_comes_in(lab: Laboratory) -> None:
    with lab.inside("public"):
        server = socket.create_server(("0.0.0.0", 0))
    with lab.inside("house-a"):
        hidden = socket.create_server(("0.0.0.0", 0))
        client = socket.create_connection(
            (lab.address("public"), server.getsockname()[1]), timeout=PATIENCE_S
        )
    accepted, source = server.accept()
    with server, client, accepted, hidden:
        assert source[0] == lab.public_address("house-a")
        client.sendall(b"out")
        assert accepted.recv(3) == b"out"
        target = lab.public_address("house-a"), hidden.getsockname()[1]
        # Dropped in silence, as at home: a refusal would end a hole punch.
        with lab.inside("public"), pytest.raises(TimeoutError):
            socket.create_connection(target, timeout=SILENCE_S)
