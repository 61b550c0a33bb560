"""The address that a node listens on, and those that it announces, when none are configured."""

import pytest

from node.control.addresses import address_towards, announced
from protocol.errors import UnavailableError


def test_a_coordinator_on_loopback_makes_a_node_listen_on_loopback() -> None:
    assert address_towards("127.0.0.1:50700") == "127.0.0.1:0"


def test_a_name_is_resolved() -> None:
    assert address_towards("localhost:50700") in ("127.0.0.1:0", "[::1]:0")


def test_a_name_that_leads_nowhere_is_told_with_what_to_check() -> None:
    with pytest.raises(
        UnavailableError,
        match=r"no way from this machine to a coordinator at no\.such\.host\.invalid:1",
    ):
        address_towards("no.such.host.invalid:1")


@pytest.mark.parametrize(
    ("listen", "advertise", "addresses"),
    [
        ("127.0.0.1:7", (), ()),  # the transport announces it as it is
        ("0.0.0.0:7", (), ("127.0.0.1:7",)),
        ("0.0.0.0:7", ("/ip4/192.0.2.7/tcp/7",), ("127.0.0.1:7", "/ip4/192.0.2.7/tcp/7")),
        ("0.0.0.0:7", ("relay.example:7",), ("relay.example:7",)),
    ],
)
def test_all_interfaces_is_an_address_to_listen_on_and_none_to_announce(
    listen: str, advertise: tuple[str, ...], addresses: tuple[str, ...]
) -> None:
    assert announced(listen, advertise, "127.0.0.1:50700") == addresses
