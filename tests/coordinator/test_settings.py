"""Settings of one coordinator: addresses and times that are accepted or refused."""

from pathlib import Path

import pytest

from coordinator.settings import CoordinatorSettings, room
from protocol.errors import SettingsError


@pytest.mark.parametrize("listen", ["127.0.0.1:0", "[::1]:50700", "0.0.0.0:65535", "host:1"])
def test_an_address_with_a_port_is_accepted(listen: str) -> None:
    assert CoordinatorSettings(Path("d"), listen).listen == listen


@pytest.mark.parametrize(
    "listen", ["", "50700", ":50700", "host:", "host:x", "host:65536", "host:-1"]
)
def test_an_address_without_a_valid_port_is_refused(listen: str) -> None:
    with pytest.raises(SettingsError, match=f"listen: expected HOST:PORT, found '{listen}'"):
        CoordinatorSettings(Path("d"), listen)


@pytest.mark.parametrize(
    ("listen", "advertise", "words"),
    [
        ("127.0.0.1:0", "run.example", "--advertise: nobody elsewhere reaches .* 127.0.0.1:0"),
        ("0.0.0.0:0", "http://run", "expected HOST:PORT"),
    ],
)
def test_an_address_that_no_volunteer_can_use_is_not_advertised(
    listen: str, advertise: str, words: str
) -> None:
    with pytest.raises(SettingsError, match=words):
        CoordinatorSettings(Path("d"), listen, advertise)


def test_the_goodbye_cannot_be_negative() -> None:
    with pytest.raises(SettingsError, match="goodbye_ms: expected 0 or more, got -1"):
        CoordinatorSettings(Path("d"), goodbye_ms=-1)


def test_a_node_is_vouched_for_by_its_id() -> None:
    peer = "0a" * 16
    assert CoordinatorSettings(Path("d"), vouch=(peer,)).vouch == (peer,)
    with pytest.raises(SettingsError, match="--vouch: expected a peer id of 32 hexadecimal"):
        CoordinatorSettings(Path("d"), vouch=("alice",))


@pytest.mark.parametrize("url", ["run.example", "ftp://run.example/", "http://a b/", "https://"])
def test_an_address_of_the_page_that_no_browser_opens_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="--page-url: expected http:// or https:// and a host"):
        CoordinatorSettings(Path("d"), page_url=url)


def test_the_public_page_needs_an_address_with_a_port() -> None:
    with pytest.raises(SettingsError, match="--public-page: expected HOST:PORT"):
        CoordinatorSettings(Path("d"), public_page="8080")


@pytest.mark.parametrize(
    ("text", "size"), [("0", 0), ("500MB", 5 * 10**8), ("1.5 tb", 15 * 10**11), ("7", 7)]
)
def test_the_room_is_written_with_its_unit(text: str, size: int) -> None:
    assert room(text) == size


def test_a_room_that_is_no_size_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected a size such as 500MB, 2GB or 0, found '2XB'"):
        room("2XB")
