"""The line for volunteers says who can reach the run, and what they need."""

import pytest

from lockstep.service.invitation import invitation, page_url
from protocol.border.join_link import JoinLink, parse_link
from protocol.ids import RunId

RUN, KEY = RunId("a" * 32), b"k" * 32


@pytest.mark.parametrize("address", ["127.0.0.1:50700", "localhost:50700", "[::1]:50700"])
def test_on_loopback_it_says_that_only_this_machine_can_reach_it(address: str) -> None:
    line = invitation(JoinLink(address, RUN, KEY))
    assert line.startswith("only this machine can reach this run")
    assert "--listen 0.0.0.0:50700" in line


@pytest.mark.parametrize("address", ["0.0.0.0:50700", "[::]:50700"])
def test_on_every_interface_it_prints_the_line_for_volunteers_with_its_own_address(
    address: str,
) -> None:
    line = invitation(JoinLink(address, RUN, KEY, plain=True))
    assert line.startswith("volunteers join with: lockstep join 'plain://")
    assert "0.0.0.0" not in line
    assert ":50700/" in line


def test_the_line_is_a_link_that_names_the_run_and_the_key() -> None:
    link = JoinLink("run.example:50700", RUN, KEY)
    before, _, quoted = invitation(link).partition("'")
    assert before == "volunteers join with: lockstep join "
    assert parse_link(quoted.rstrip("'")) == link


def test_it_says_what_newcomers_need_besides_the_link() -> None:
    for link in (JoinLink("127.0.0.1:50700", RUN, KEY), JoinLink("run.example:50700", RUN, KEY)):
        assert "token" not in invitation(link)
        assert invitation(link, "token").endswith("needs a token: lockstep run token create")
        assert invitation(link, "list").endswith("allowed their keys: lockstep run allow KEY")


def test_a_link_with_a_token_needs_nothing_besides() -> None:
    link = JoinLink("run.example:50700", RUN, KEY).with_token("secret")
    line = invitation(link, "token")
    assert line == f"volunteers join with: lockstep join '{link.text()}'"


@pytest.mark.parametrize(
    ("address", "told"), [("0.0.0.0:50700", True), ("run.example:50700", False)]
)
def test_an_address_that_the_machine_chose_itself_is_told(address: str, told: bool) -> None:
    assert ("--advertise HOST" in invitation(JoinLink(address, RUN, KEY))) is told


@pytest.mark.parametrize(
    ("listen", "url"),
    [
        ("0.0.0.0:8080", "http://run.example:8080/"),
        ("[::]:0", "http://run.example:8080/"),
        ("pages.example:8080", "http://pages.example:8080/"),
        ("[2001:db8::1]:8080", "http://[2001:db8::1]:8080/"),
    ],
)
def test_the_address_of_the_page_is_one_that_others_reach(listen: str, url: str) -> None:
    assert page_url(JoinLink("run.example:50700", RUN, KEY), listen, 8080) == url
