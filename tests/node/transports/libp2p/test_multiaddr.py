"""libp2p's names, against values that its own programs print."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.transports.libp2p.multiaddr import (
    decode,
    encode,
    from_host_port,
    host_of,
    id_bytes,
    id_text,
    is_circuit,
    libp2p_id,
    split_peer,
    tcp_port,
    with_port,
)
from protocol.errors import RemoteProtocolError, SettingsError

PEER = "12D3KooWGzxzKZYveHXtpG6AsrUJBcWxHBFS2HsEoGTxrMLvKXtf"
ED25519 = st.binary(min_size=32, max_size=32).map(libp2p_id)
WHERE = st.one_of(
    st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)).map(
        lambda at: f"/ip4/{at[0]}/tcp/{at[1]}"
    ),
    st.tuples(st.ip_addresses(v=6), st.integers(0, 65535)).map(
        lambda at: f"/ip6/{at[0]}/tcp/{at[1]}"
    ),
    st.integers(0, 65535).map(lambda port: f"/dns4/node.example/tcp/{port}"),
)


def test_the_id_of_a_key_is_what_libp2p_derives_from_it() -> None:
    # The example of libp2p/specs, peer-ids: a public key in libp2p's protobuf, and its id.
    key = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
    assert libp2p_id(key) == id_text(bytes.fromhex("002408011220") + key)
    assert id_bytes(libp2p_id(key)).endswith(key)


@given(ED25519)
def test_an_ed25519_id_survives_its_binary_form(peer: str) -> None:
    assert peer.startswith("12D3KooW")
    assert id_text(id_bytes(peer)) == peer


@given(WHERE, ED25519, ED25519)
def test_an_address_survives_its_binary_form(where: str, relay: str, peer: str) -> None:
    for address in (
        where,
        f"{where}/p2p/{peer}",
        f"{where}/p2p/{relay}/p2p-circuit/p2p/{peer}",
        f"/p2p/{peer}",
    ):
        assert decode(encode(address)) == address


def test_binary_addresses_are_those_of_the_table_of_codes() -> None:
    assert encode("/ip4/127.0.0.1/tcp/4001").hex() == "047f000001060fa1"
    assert encode("/dns4/a.b/tcp/1/p2p-circuit").hex() == "3603612e62060001a202"
    assert encode("/unix/tmp/x.sock") == b"\x90\x03\x0b/tmp/x.sock"


@pytest.mark.parametrize(
    "address",
    [
        "ip4/1.2.3.4",
        "/ip4",
        "/ip4/1.2.3",
        "/ip4/1.2.3.4/tcp",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/udp/1",
        "/p2p/0OIl",
        "/p2p/",
        "/p2p/" + "z" * 99,
        "/dns4/" + "a" * 600,
        "/ip4/1.2.3.4/tcp/-1",
        "/ip4/1.2.3.4/tcp/x",
    ],
)
def test_an_address_that_is_not_over_tcp_is_refused(address: str) -> None:
    with pytest.raises(SettingsError):
        encode(address)


@given(st.binary(max_size=60))
def test_any_bytes_are_an_address_or_an_error_of_a_peer(binary: bytes) -> None:
    with contextlib.suppress(RemoteProtocolError):
        assert decode(encode(decode(binary))) == decode(binary)


def test_the_peer_of_a_circuit_is_the_one_behind_the_relay() -> None:
    circuit = f"/ip4/192.0.2.7/tcp/1/p2p/{libp2p_id(bytes(32))}/p2p-circuit"
    assert split_peer(f"{circuit}/p2p/{PEER}") == (circuit, PEER)
    assert split_peer(f"/p2p/{PEER}") == ("", PEER)
    assert [is_circuit(address) for address in (circuit, f"/p2p/{PEER}")] == [True, False]


def test_host_and_port_become_an_address() -> None:
    assert from_host_port("192.0.2.7:5") == "/ip4/192.0.2.7/tcp/5"
    assert from_host_port("[2001:db8::1]:5") == "/ip6/2001:db8::1/tcp/5"
    assert from_host_port("node.example:5") == "/dns/node.example/tcp/5"
    assert from_host_port("/ip4/192.0.2.7/tcp/5") == "/ip4/192.0.2.7/tcp/5"
    for nonsense in ("", ":5", "node.example", "a/b:5", "1::2:x", "a:b:5", "node.example:70000"):
        with pytest.raises(SettingsError):
            from_host_port(nonsense)


def test_only_port_0_is_replaced() -> None:
    assert with_port("/dns/a/tcp/0", 7) == "/dns/a/tcp/7"
    assert with_port(f"/dns/a/tcp/0/p2p/{PEER}", 7) == "/dns/a/tcp/7"
    assert with_port("/ip4/192.0.2.7/tcp/5", 7) == "/ip4/192.0.2.7/tcp/5"
    assert with_port("/ip4/192.0.2.7/tcp/01", 7) == "/ip4/192.0.2.7/tcp/01"


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("/ip4/192.0.2.7/tcp/5/p2p/x", "192.0.2.7", 5),
        ("/dns/node.example/tcp/65535", "node.example", 65535),
        ("/ip6/::1/udp/4", "::1", 0),
        ("/dns/tcp/tcp/5", "tcp", 5),
        ("/dns/tcp/tcp/x", "tcp", 0),
        ("/", "", 0),
        ("", "", 0),
    ],
)
def test_host_and_port_of_an_address(address: str, host: str, port: int) -> None:
    assert (host_of(address), tcp_port(address)) == (host, port)
