"""Addresses as people type them."""

import errno
import os

import pytest

from protocol.addresses import (
    DEFAULT_PORT,
    has_login,
    listen_error,
    parse_address,
    split_address,
    with_port,
)
from protocol.errors import AddressInUseError, LockstepError, SettingsError


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org:1234", "example.org:1234"),
        ("example.org", f"example.org:{DEFAULT_PORT}"),
        ("  10.0.0.1:80 \n", "10.0.0.1:80"),
        ("lockstep://example.org:1234", "example.org:1234"),
        ("lockstep://example.org/", f"example.org:{DEFAULT_PORT}"),
        ("[::1]:50700", "[::1]:50700"),
        ("[::1]", f"[::1]:{DEFAULT_PORT}"),
        ("lockstep://[fe80::1%eth0]:7/", "[fe80::1%eth0]:7"),
        ("host:0", "host:0"),
        ("host:65535", "host:65535"),
        ("host:00080", "host:80"),
    ],
)
def test_a_good_address_is_host_and_port(text: str, address: str) -> None:
    assert parse_address(text) == address
    assert parse_address(address) == address


def test_the_default_port_is_the_callers() -> None:
    assert parse_address("host", default_port=9) == "host:9"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        ":80",
        "[]:80",
        "host:",
        "host:port",
        "host:-1",
        "host:65536",
        "host:99999999999999999999",
        pytest.param("host:" + "9" * 5000, id="host:9..."),
        "host:８０",
        "host name:80",
        "http://host:80",
        "host/path:80",
        "host:80/path",
        "user@host:80",
        "host#x:80",
        "host?x:80",
        "lockstep://",
    ],
)
def test_a_bad_address_is_repeated_with_what_was_expected(text: str) -> None:
    with pytest.raises(SettingsError, match="expected HOST:PORT or lockstep://HOST:PORT, found"):
        parse_address(text)


@pytest.mark.parametrize("text", ["::1", "::1:50700", "fe80::1"])
def test_an_ipv6_address_needs_brackets(text: str) -> None:
    with pytest.raises(
        SettingsError, match=r"expected an IPv6 address in brackets, \[ADDRESS\]:PORT"
    ):
        parse_address(text)


@pytest.mark.parametrize("text", ["[::1", "host]:80", "[abc]:80", "[::1:80"])
def test_brackets_belong_around_an_ipv6_address(text: str) -> None:
    with pytest.raises(SettingsError, match=r"\[ADDRESS\]:PORT, found"):
        parse_address(text)


@pytest.mark.parametrize(
    ("address", "host", "port"),
    [
        ("192.0.2.7:50701", "192.0.2.7", 50701),
        ("node-1.example_2.org:0", "node-1.example_2.org", 0),
        ("[2001:db8::1]:65535", "2001:db8::1", 65535),
        ("[::ffff:192.0.2.7]:1", "::ffff:192.0.2.7", 1),
        ("[fe80::1%eth0]:7", "fe80::1%eth0", 7),
    ],
)
def test_an_address_is_split_into_host_and_port(address: str, host: str, port: int) -> None:
    assert split_address(address) == (host, port)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "host",
        ":1",
        "[]:1",
        "host:",
        "host:x",
        "host:-1",
        "host:65536",
        "host:1\n",
        "host:８０",
        "::1:5",
        "[host]:5",
        "[::1:5",
        "::1]:5",
        "a b:5",
        "a/b:5",
        "user@host:5",
        "unix:///x",
        "/ip4/127.0.0.1/tcp/1",
    ],
)
def test_anything_but_host_and_port_is_refused(address: str) -> None:
    with pytest.raises(SettingsError, match=r"expected HOST:PORT or \[IPV6\]:PORT"):
        split_address(address)


def test_only_port_0_is_replaced() -> None:
    assert with_port("host:0", 7) == "host:7"
    assert with_port("[::1]:0", 7) == "[::1]:7"
    assert with_port("host:5", 7) == "host:5"


@pytest.mark.parametrize(
    ("url", "has"),
    [
        ("https://me:word@host/data", True),
        ("s3://key@bucket/data", True),
        ("https://host/data?mail=me@host", False),
        ("s3://bucket/me@home", False),
        ("/mnt/me@home", False),
        ("", False),
    ],
)
def test_a_login_stands_before_the_host_of_a_url(url: str, has: bool) -> None:
    assert has_login(url) is has


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EADDRINUSE, AddressInUseError, "belongs to another process; stop that one, or"),
        (errno.EACCES, SettingsError, "those below 1024 need rights, choose a higher one"),
        (errno.EADDRNOTAVAIL, SettingsError, "the address is not this machine's"),
        (errno.ENOBUFS, SettingsError, os.strerror(errno.ENOBUFS)),
    ],
)
def test_an_address_that_the_system_refuses_is_told_with_the_reason(
    number: int, kind: type[LockstepError], words: str
) -> None:
    told = listen_error(OSError(number, os.strerror(number)), "127.0.0.1:80", "--admin")
    assert type(told) is kind
    assert str(told).startswith("cannot listen on 127.0.0.1:80 (--admin): ")
    assert words in str(told)
