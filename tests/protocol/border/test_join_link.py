"""Links that name a run."""

import pytest

from protocol.border.join_link import JoinLink, is_loopback, parse_link, split_token
from protocol.errors import RemoteProtocolError, SettingsError, VersionError
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import RunSpec

RUN, KEY = RunId("0123456789abcdef" * 2), bytes(range(32))
WHOLE = f"lockstep://example.org:50700/{RUN}#AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8"


def info(run_id: RunId = RUN, key: bytes = KEY) -> RunInfo:
    return RunInfo(RunSpec.model_construct(), run_id, key)


def test_a_whole_link_is_read_and_written() -> None:
    link = parse_link(WHOLE)
    assert link == JoinLink("example.org:50700", RUN, KEY)
    assert link.text() == WHOLE
    for copied in (f" {WHOLE} ", f"'{WHOLE}'", f'"{WHOLE}"', f"<{WHOLE}>", f"`{WHOLE}`"):
        assert parse_link(copied) == link


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org", "example.org:50700"),
        ("192.0.2.7:1234", "192.0.2.7:1234"),
        ("lockstep://[2001:db8::1]:7", "[2001:db8::1]:7"),
        ("lockstep://example.org:50700/", "example.org:50700"),
    ],
)
def test_an_address_alone_names_no_run(text: str, address: str) -> None:
    assert parse_link(text) == JoinLink(address)


def test_plain_text_is_permitted_to_this_machine_or_where_the_link_says_so() -> None:
    assert parse_link("127.0.0.1:1").may_be_plain
    assert parse_link("[::1]:1").may_be_plain
    assert parse_link("localhost:1").may_be_plain
    assert not parse_link("192.168.1.2:1").may_be_plain
    assert not parse_link("localhost.example.org:1").may_be_plain
    assert parse_link("plain://192.168.1.2:1").may_be_plain
    assert parse_link("plain://192.168.1.2:1").text() == "plain://192.168.1.2:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "expected lockstep://"),
        ("http://example.org:1", "expected lockstep://HOST:PORT/RUN#KEY or HOST:PORT"),
        ("lockstep:/example.org:1", "expected lockstep://HOST:PORT/RUN#KEY or HOST:PORT"),
        ("lockstep://example.org:1/run", "32 lower-case hexadecimal characters"),
        (WHOLE.replace(RUN, RUN.upper()), "32 lower-case hexadecimal characters"),
        (WHOLE[:-1], "43 characters"),
        (WHOLE + "A", "43 characters"),
        (WHOLE.replace("#", "#!"), "43 characters"),
        ("lockstep://example.org:99999/" + RUN, "HOST:PORT"),
        ("lockstep://", "expected"),
    ],
)
def test_anything_else_is_told(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        parse_link(text)


@pytest.mark.parametrize("more", ["v=2", "token=s3cret&v=2", "v=2&token=s3cret"])
def test_a_link_of_a_later_release_asks_for_an_update(more: str) -> None:
    with pytest.raises(VersionError, match=r"'v', which this release .* update Lockstep"):
        parse_link(WHOLE.replace("#", f"?{more}#"))


@pytest.mark.parametrize("around", ["{}.", "<{}>", "(`{}`),", " {}\n", "'{}'"])
def test_a_link_from_the_middle_of_a_text_is_read(around: str) -> None:
    assert parse_link(around.format(WHOLE)) == parse_link(WHOLE)


def test_another_coordinator_or_another_run_is_found_out() -> None:
    link = parse_link(WHOLE)
    link.check(RUN, KEY, KEY)
    link.check(RUN, KEY, None)
    with pytest.raises(SettingsError, match="with the key AAEC"):
        link.check(RUN, bytes(32), None)
    with pytest.raises(SettingsError, match=f"expected run {RUN}"):
        link.check(RunId("f" * 32), KEY, KEY)
    with pytest.raises(RemoteProtocolError, match="another machine stands between"):
        link.check(RUN, KEY, bytes(32))
    with pytest.raises(RemoteProtocolError, match="another machine stands between"):
        parse_link("example.org").check(RUN, KEY, bytes(32))
    link.require_run(RUN)
    parse_link("example.org").require_run("any")
    with pytest.raises(SettingsError, match="found run other: ask the operator"):
        link.require_run("other")


def test_names_are_not_taken_for_this_machine() -> None:
    assert not is_loopback("example.org:1")
    assert is_loopback("127.8.9.1:1")


# ---- tokens


def test_a_token_in_a_link_is_read_and_written_and_not_shown_by_accident() -> None:
    text = WHOLE.replace("#", "?token=s3cret#")
    link = parse_link(text)
    assert link == parse_link(WHOLE).with_token("s3cret")
    assert link.token == "s3cret"
    assert link.text() == text
    assert "s3cret" not in repr(link)


@pytest.mark.parametrize(
    "text", ["example.org?token=s3cret", "lockstep://example.org/?token=s3cret"]
)
def test_an_address_alone_takes_a_token_too(text: str) -> None:
    assert parse_link(text) == JoinLink("example.org:50700", token="s3cret")


def test_a_link_and_its_token_are_told_apart() -> None:
    text = WHOLE.replace("#", "?token=s3cret#")
    assert split_token(text, "") == (WHOLE, "s3cret")
    assert split_token(text, "other") == (WHOLE, "other")
    assert split_token("example.org", "") == ("example.org", "")


def test_a_token_goes_over_tls_or_stays_on_this_machine() -> None:
    far, near = parse_link("example.org?token=t"), parse_link("127.0.0.1:1?token=t")
    assert far.token_over(secure=True) == near.token_over(secure=False) == "t"
    assert far.token_over(secure=False) == ""
    with pytest.raises(SettingsError, match="with TLS"):
        parse_link("plain://192.0.2.7:1?token=t")
    with pytest.raises(SettingsError, match="with TLS"):
        parse_link("plain://192.0.2.7:1").with_token("t")


@pytest.mark.parametrize("token", ["a b", "x" * 65, "ü", "a&b"])
def test_a_text_that_is_no_token_is_refused_and_not_repeated(token: str) -> None:
    with pytest.raises(SettingsError, match="expected a token") as refused:
        parse_link("example.org").with_token(token)
    assert token not in str(refused.value).removeprefix("expected a token")
