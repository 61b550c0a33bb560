"""libp2p's messages, byte for byte as the encoder wrote them that was written by hand."""

import contextlib
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from node.transports.libp2p.circuit_pb2 import DialBackMessage, DialResponse, HopMessage, Identify
from node.transports.libp2p.daemon import private_key_message
from node.transports.libp2p.daemon_control import (
    connect_request,
    disconnect_request,
    handler_request,
    open_request,
    parsed,
)
from node.transports.libp2p.multiaddr import decode, encode, id_text, libp2p_id
from node.transports.libp2p.p2pd_pb2 import Request, Response, StreamInfo
from node.transports.libp2p.reservations import dial_back_message, reached_port, reserve_message
from protocol.errors import RemoteProtocolError

PEER = libp2p_id(bytes(range(32)))
PEER_HEX = "002408011220000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
ADDRESS, ADDRESS_HEX = "/ip4/192.0.2.7/tcp/50702", "04c000020706c60e"
PROTOCOL, PROTOCOL_HEX = "/lockstep/pipe/1", b"/lockstep/pipe/1".hex()


@pytest.mark.parametrize(
    ("message", "golden"),
    [
        (Request(type=Request.IDENTIFY), "0800"),
        (Request(type=Request.LIST_PEERS), "0805"),
        (Request(type=Request.PERSISTENT_CONN_UPGRADE), "0809"),
        (
            connect_request(PEER, (ADDRESS, "/dns4/a.b/tcp/1"), 300),
            f"0801123f0a26{PEER_HEX}1208{ADDRESS_HEX}12083603612e6206000118ac02",
        ),
        (disconnect_request(PEER), f"08073a280a26{PEER_HEX}"),
        (
            handler_request(PROTOCOL, Path("/tmp/x.sock")),
            f"080322240a0e90030b2f746d702f782e736f636b1210{PROTOCOL_HEX}1800",
        ),
        (open_request(PEER, PROTOCOL, 9), f"08021a3c0a26{PEER_HEX}1210{PROTOCOL_HEX}1809"),
        (
            private_key_message(Ed25519PrivateKey.from_private_bytes(bytes(32))),
            "08011240"
            + "00" * 32
            + "3b6a27bcceb6a42d62a3a8d02a6f0d73653215771de243a63ac048a18b59da29",
        ),
        (reserve_message(), "0800"),
        (dial_back_message(PEER, ADDRESS), f"080012340a320a26{PEER_HEX}1208{ADDRESS_HEX}"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Message) else value[:8],
)
def test_a_question_is_the_bytes_that_it_was_before(message: Message, golden: str) -> None:
    assert message.SerializeToString().hex() == golden


def test_answers_of_the_daemon_are_read_by_their_numbers() -> None:
    identity = f"22320a26{PEER_HEX}1208{ADDRESS_HEX}"
    answer = parsed(Response, bytes.fromhex("0800" + identity))
    assert id_text(answer.identity.id) == PEER
    assert [decode(address) for address in answer.identity.addresses] == [ADDRESS]
    peers = f"32320a26{PEER_HEX}1208{ADDRESS_HEX}" * 2
    assert len(parsed(Response, bytes.fromhex("0800" + peers)).peers) == 2
    stream = parsed(StreamInfo, bytes.fromhex(f"0a26{PEER_HEX}1208{ADDRESS_HEX}1a0178"))
    assert (id_text(stream.peer), decode(stream.address)) == (PEER, ADDRESS)


def test_answers_of_a_relay_are_read_by_their_numbers() -> None:
    granted = parsed(HopMessage, bytes.fromhex("08021a0508e0d4fb05"))
    assert granted.reservation.expires_s == 12511840
    assert granted.limit.data_bytes == 0
    limited = parsed(HopMessage, bytes.fromhex("08021a002206087810808008"))
    assert limited.HasField("reservation")
    assert limited.limit.data_bytes == 1 << 17
    seen = parsed(Identify, bytes.fromhex("1204" + "00" * 4 + f"2208{ADDRESS_HEX}"))
    assert decode(seen.observed_address) == ADDRESS
    assert not parsed(Identify, b"").HasField("observed_address")


def test_a_dial_back_tells_the_port_that_it_reached() -> None:
    reached = parsed(DialBackMessage, bytes.fromhex(f"08011a0c08001a08{ADDRESS_HEX}"))
    assert reached.type == DialBackMessage.DIAL_RESPONSE
    assert reached_port(reached) == 50702
    assert reached_port(parsed(DialBackMessage, bytes.fromhex("08011a020864"))) == 0


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ("08011a020865", "status DIAL_REFUSED"),
        ("08011a0308c801", "status BAD_REQUEST"),
        ("08011a02087b", "status none"),
        ("08011a00", "status none"),
        ("0801", "status none"),
    ],
)
def test_a_dial_back_that_was_refused_says_so(answer: str, words: str) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        reached_port(parsed(DialBackMessage, bytes.fromhex(answer)))


def test_status_numbers_are_those_of_the_specification() -> None:
    assert dict(DialResponse.Status.items()) == {
        "OK": 0,
        "DIAL_ERROR": 100,
        "DIAL_REFUSED": 101,
        "BAD_REQUEST": 200,
        "INTERNAL_ERROR": 300,
    }


@given(st.sampled_from([Response, StreamInfo, HopMessage, Identify]), st.binary(max_size=60))
def test_any_bytes_are_a_message_or_an_error_of_their_sender(
    kind: type[Message], data: bytes
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert parsed(kind, data).IsInitialized()


@given(st.sampled_from(list(DialResponse.Status.values())), st.binary(max_size=40))
def test_any_address_of_a_dial_back_is_a_port_or_an_error_of_the_relay(
    status: DialResponse.Status, address: bytes
) -> None:
    with contextlib.suppress(RemoteProtocolError):
        response = DialResponse(status=status, address=address)
        assert 0 <= reached_port(DialBackMessage(response=response)) < 1 << 16


def test_a_host_called_tcp_in_a_dial_back_does_no_harm() -> None:
    response = DialResponse(status=DialResponse.OK, address=encode("/dns/tcp/tcp/5"))
    assert reached_port(DialBackMessage(response=response)) == 5


@pytest.mark.parametrize("data", [b"\xff", b"\x0a\x05x", b"\x0d1"])
def test_bytes_that_are_no_message_are_an_error_of_their_sender(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected a HopMessage"):
        parsed(HopMessage, data)
