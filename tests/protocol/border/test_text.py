"""Foreign text: what a stranger writes commands no terminal and forges no line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.border.text import clean, clean_document, one_line, require_plain
from protocol.errors import RemoteProtocolError

HOSTILE = "\x1b]0;owned\x07\x1b[2J"


@given(st.text(), st.integers(1, 64))
def test_cleaned_text_is_printable_short_and_stays_as_it_is(text: str, bytes_max: int) -> None:
    cleaned = clean(text, bytes_max)
    assert cleaned.isprintable()
    assert len(cleaned.encode()) <= bytes_max
    assert clean(cleaned, bytes_max) == cleaned


@pytest.mark.parametrize("text", ["node 1", "Zoë's Rechner", "日本", "[/x]", ""])
def test_honest_text_passes_unchanged(text: str) -> None:
    assert clean(text) == require_plain(text, "ab12") == text


@pytest.mark.parametrize("text", [HOSTILE, "a\nb", "a\rb", "\u202egnp", "\u2028", "\x9b2J", "\0"])
def test_control_characters_are_replaced_or_refused(text: str) -> None:
    assert clean(text).isprintable()
    with pytest.raises(RemoteProtocolError, match="ab12: expected text without control"):
        require_plain(text, "ab12")


def test_long_text_is_cut_at_a_character_or_refused() -> None:
    assert clean("ä" * 200) == "ä" * 128
    with pytest.raises(RemoteProtocolError, match="at most 256 bytes, got 400"):
        require_plain("ä" * 200, "ab12")


@given(st.text(), st.integers(1, 64))
def test_a_line_is_printable_and_no_longer_than_asked(text: str, length_max: int) -> None:
    line = one_line(text, length_max)
    assert line.isprintable()
    assert len(line) <= length_max
    assert one_line(line, length_max) == line


def test_a_line_keeps_the_words_and_says_where_it_was_cut() -> None:
    assert one_line("a\nb \t c") == "a b c"
    assert one_line("too long", 4) == "too…"


def test_every_text_of_a_document_is_cleaned() -> None:
    document = {HOSTILE: [{"name": HOSTILE, "round": 3, "loss": None, "own": True}]}
    cleaned = clean_document(document)
    assert "\x1b" not in str(cleaned)
    assert next(iter(cleaned.values()))[0] | {"name": ""} == {
        "name": "",
        "round": 3,
        "loss": None,
        "own": True,
    }
