"""Which of this machine's addresses a node listens on by itself."""

import pytest

from node.reachable import address_towards
from protocol.errors import UnavailableError


def test_a_coordinator_on_loopback_makes_a_node_listen_on_loopback() -> None:
    assert address_towards("127.0.0.1:50700") == "127.0.0.1:0"


def test_a_name_is_resolved() -> None:
    assert address_towards("localhost:50700") in ("127.0.0.1:0", "[::1]:0")


def test_a_name_that_leads_nowhere_is_told_with_what_to_check() -> None:
    with pytest.raises(
        UnavailableError, match=r"no way from this machine to a coordinator at no\.such\.host\.invalid:1"
    ):
        address_towards("no.such.host.invalid:1")
