"""Connections of the daemon."""

from node.transports.libp2p.contact import Contact


def test_only_a_connection_through_a_relay_is_relayed() -> None:
    assert Contact("peer", "/ip4/192.0.2.7/tcp/1/p2p/relay/p2p-circuit").relayed
    assert not Contact("peer", "/ip4/192.0.2.7/tcp/1").relayed
    assert not Contact("peer", "").relayed
