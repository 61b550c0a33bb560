"""The states of a link, and the meeting of its two ends."""

from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.links.handshake import Handshake, State
from protocol.errors import LocalProtocolError, RemoteProtocolError, VersionError
from protocol.handshake import public_bytes
from protocol.ids import RunId, peer_id
from protocol.wire_pb2 import LinkHello, LinkProof

RUN = RunId("ab" * 16)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in (1, 2)]
PEERS = [peer_id(public_bytes(key)) for key in KEYS]


def end(number: int) -> Handshake:
    return Handshake(KEYS[number], RUN, 70 + number, bytes([number]) * 32)


def changed(hello: LinkHello, **fields: Any) -> LinkHello:
    copy = LinkHello()
    copy.CopyFrom(hello)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


def test_two_ends_that_greet_and_prove_know_each_other() -> None:
    one, two = end(0), end(1)
    assert (one.state, one.peer, one.public_key) == (State.GREETING, None, b"")
    proof_of_two, proof_of_one = two.greet(one.hello()), one.greet(two.hello())
    assert (one.state, one.peer, one.instance) == (State.GREETED, None, 71)
    assert one.name == "the other end"
    assert [one.prove(proof_of_two), two.prove(proof_of_one)] == [PEERS[1], PEERS[0]]
    assert (one.state, one.peer) == (State.PROVEN, PEERS[1])
    assert one.public_key == public_bytes(KEYS[1])
    assert one.name == f"peer {PEERS[1][:8]}"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"run_id": "cd" * 16}, RemoteProtocolError),
        ({"protocol_version": 99}, VersionError),
        ({"nonce": b"short"}, RemoteProtocolError),
        ({"public_key": public_bytes(KEYS[0])}, RemoteProtocolError),
    ],
)
def test_a_hello_that_does_not_fit_is_refused_and_changes_nothing(
    fields: dict[str, Any], error: type[Exception]
) -> None:
    one = end(0)
    with pytest.raises(error):
        one.greet(changed(end(1).hello(), **fields))
    assert (one.state, one.instance, one.public_key) == (State.GREETING, 0, b"")


def test_a_hello_comes_once_and_the_proof_once_after_it() -> None:
    one, two = end(0), end(1)
    with pytest.raises(RemoteProtocolError, match="expected one proof, after the hello"):
        one.prove(LinkProof())
    proof = two.greet(one.hello())
    one.greet(two.hello())
    with pytest.raises(RemoteProtocolError, match="expected one hello, got a second"):
        one.greet(two.hello())
    one.prove(proof)
    with pytest.raises(RemoteProtocolError, match="expected one proof, after the hello"):
        one.prove(proof)


def test_a_bad_proof_leaves_the_end_unproven() -> None:
    one, two = end(0), end(1)
    one.greet(two.hello())
    with pytest.raises(RemoteProtocolError):
        one.prove(LinkProof(signature=bytes(64)))
    assert (one.state, one.peer) == (State.GREETED, None)


def test_messages_are_heard_from_a_proven_end_only() -> None:
    one, two = end(0), end(1)
    proof = two.greet(one.hello())
    for step in (lambda: None, lambda: one.greet(two.hello())):
        step()
        with pytest.raises(RemoteProtocolError, match="before anything else, got a beat"):
            one.require_proven("a beat")
    one.prove(proof)
    one.require_proven("a beat")
    one.end("over")
    with pytest.raises(RemoteProtocolError):
        one.require_proven("a beat")


def test_the_first_end_of_a_link_keeps_its_reason() -> None:
    one = end(0)
    one.end("it was silent")
    one.end("another reason")
    assert (one.state, one.end_reason) == (State.ENDED, "it was silent")


def test_a_transition_that_the_picture_lacks_raises_with_states_and_reason() -> None:
    one, two = end(0), end(1)
    one.end("it was silent")
    with pytest.raises(RemoteProtocolError):
        one.greet(two.hello())
    with pytest.raises(
        LocalProtocolError, match=r"is ended to become no state, got proven; .* it was silent"
    ):
        one._become(State.PROVEN)
