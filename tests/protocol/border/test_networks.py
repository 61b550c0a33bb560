"""Hosts: the connections of one are counted together."""

import pytest

from protocol.border.networks import host_of


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("ipv4:192.0.2.7:50701", "192.0.2.7"),
        ("ipv6:%5B::1%5D:50701", "::/64"),
        ("ipv6:%5B2001:db8:1:2:3:4:5:6%5D:1", "2001:db8:1:2::/64"),
        ("ipv6:%5B2001:db8:1:2:ffff::%5D:9", "2001:db8:1:2::/64"),
        ("ipv6:%5B::ffff:192.0.2.7%5D:50701", "192.0.2.7"),
        ("ipv6:%5Bfe80::1%25eth0%5D:50701", "fe80::/64"),
        ("unix:", ""),
    ],
)
def test_a_peer_has_the_host_that_it_is_counted_by(peer: str, host: str) -> None:
    assert host_of(peer) == host
