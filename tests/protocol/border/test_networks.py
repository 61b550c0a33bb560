"""Hosts: the connections of one are counted together."""

import pytest

from protocol.border.networks import host_of, is_for_everybody, is_near, leads_back


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


@pytest.mark.parametrize(
    ("address", "back"),
    [
        ("127.0.0.1:1", True),
        ("127.9.9.9:1", True),
        ("[::1]:1", True),
        ("[::ffff:127.0.0.1]:1", True),
        ("0.0.0.0:1", True),
        ("169.254.169.254:80", True),
        ("[fe80::1%eth0]:1", True),
        ("localhost:1", True),
        ("LOCALHOST.:1", True),
        ("/ip4/127.0.0.1/tcp/4001", True),
        ("/ip6/::1/tcp/4001/p2p/x", True),
        ("192.168.1.1:80", False),
        ("192.0.2.1:1", False),
        ("node-1:50701", False),
        ("/dns4/example.org/tcp/1", False),
        ("/ip4/192.0.2.1/tcp/1", False),
        ("", False),
    ],
)
def test_an_address_that_leads_back_to_the_dialling_machine_is_known(
    address: str, back: bool
) -> None:
    assert leads_back(address) is back


@pytest.mark.parametrize(
    ("host", "near"),
    [("127.0.0.1", True), ("::/64", True), ("", True), ("172.17.0.1", True), ("9.9.9.9", False)],
)
def test_a_visitor_from_near_by_is_known(host: str, near: bool) -> None:
    assert is_near(host) is near


@pytest.mark.parametrize(
    "url",
    [
        "hf://me/model",
        "s3://bucket/winter/model",
        "gs://bucket/model",
        "https://example.org/models/winter",
        "https://EXAMPLE.org.:8443/a",
        "http://9.9.9.9/model",
    ],
)
def test_a_place_of_a_model_that_everybody_can_read_is_known(url: str) -> None:
    assert is_for_everybody(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/home/me/model",
        "file:///etc",
        "javascript:alert(1)",
        "ftp://example.org/a",
        "https://me:secret@example.org/a",
        "https://example.org/a::file:///c",
        "https://example.org/a?token=b",
        "https://example.org/a b",
        "https://example.org/\u202efdp",
        "http://127.0.0.1:8080/a",
        "http://[::1]/a",
        "http://[::1/a",
        "http://192.168.1.1/admin",
        "http://169.254.169.254/latest",
        "http://0x7f.1/a",
        "http://2130706433/a",
        "http://localhost/a",
        "http://LOCALHOST./a",
        "http://router/a",
        "http://printer.local/a",
        "http://metadata.google.internal/a",
        "https:///a",
    ],
)
def test_no_other_place_of_a_model_is_shown_to_everybody(url: str) -> None:
    assert not is_for_everybody(url)
