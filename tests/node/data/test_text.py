"""Bytes become text by what they are, or are refused."""

import codecs
import random
import zlib

import pytest

from node.data.text import UnreadableError, decoded

TEXT = "Grüße, 你好, привет: line\r\n" * 40


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_a_byte_order_mark_names_the_encoding_and_is_no_text(mark: bytes, encoding: str) -> None:
    assert decoded(mark + TEXT.encode(encoding)) == (TEXT, 0)


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_latin_text_in_utf16_is_known_without_a_mark(encoding: str) -> None:
    text = "Plain words with some naïve café.\n" * 300
    assert decoded(text.encode(encoding)) == (text, 0)


def test_utf8_stays_as_it_is_with_its_own_replacement_characters() -> None:
    text = TEXT + "\ufffd" * 100
    assert decoded(text.encode()) == (text, 0)


def test_latin1_keeps_its_words_and_counts_what_broke() -> None:
    text = "Die Straße führt über die Brücke zum Bahnhof.\n" * 1000
    found, broken = decoded(text.encode("latin-1"))
    assert broken == found.count("\ufffd") == 4000
    assert found.startswith("Die Stra\ufffde f\ufffdhrt")


@pytest.mark.parametrize("encoding", ["koi8-r", "shift-jis", "cp1251", "gb18030"])
def test_another_script_in_another_encoding_is_refused_with_the_remedy(encoding: str) -> None:
    text = "語語語" if encoding in ("shift-jis", "gb18030") else "Привет, мир и все люди"
    with pytest.raises(UnreadableError, match=r"not UTF-8.*iconv -f ENCODING -t UTF-8"):
        decoded(text.encode(encoding) * 500)


def test_noise_is_refused_whether_or_not_it_holds_nul_bytes() -> None:
    noise = random.Random(1).randbytes(100_000)
    with pytest.raises(UnreadableError, match="binary"):
        decoded(noise)
    with pytest.raises(UnreadableError, match="not UTF-8"):
        decoded(noise.replace(b"\0", b""))
    with pytest.raises(UnreadableError, match="not UTF-8"):
        decoded(zlib.compress(noise).replace(b"\0", b""))
    with pytest.raises(UnreadableError, match="control characters"):
        decoded(bytes(range(1, 9)) * 1000)


def test_a_nul_byte_far_from_the_beginning_makes_a_file_binary() -> None:
    with pytest.raises(UnreadableError, match="NUL"):
        decoded(b"a shell script that carries an archive\n" * 1000 + b"\0")


def test_a_file_that_breaks_the_promise_of_its_mark_is_damaged() -> None:
    with pytest.raises(UnreadableError, match=r"damaged.*UTF-16"):
        decoded(codecs.BOM_UTF16_LE + b"a\0b\0c")


def test_coloured_logs_are_text() -> None:
    text = "\x1b[32mok\x1b[0m step\t1\r\n" * 300
    assert decoded(text.encode()) == (text, 0)
