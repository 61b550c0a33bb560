"""Bytes to text, by what they are: UTF-8, or UTF-16 and UTF-32 by their byte-order marks.

The mark is no part of the text. What is no text is refused in one sentence (`UnreadableError`), so
that nothing becomes noise that a model is trained on.
"""

import codecs

from protocol.errors import DataError

BROKEN_SHARE_MAX = 0.1
"""Part of a text's characters that may be no UTF-8, or control characters; each broken one becomes
U+FFFD. Western European text in Latin-1 has 0.01 to 0.06, other scripts and noise far more."""

BROKEN_FREE = 8
"""Broken characters that a text of any length may have: in a short one shares say nothing."""

_HEAD_CHARACTERS = 8192
"""Beginning of a text in which control characters are counted."""

_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),  # before UTF-16, whose mark is its beginning
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)

_CONTROLS = [chr(code) for code in (*range(1, 8), *range(14, 27), *range(28, 32), 127)]
"""Control characters that text does not hold; ESC (27) colours logs."""


class UnreadableError(DataError):
    """A file, or a part of one, holds no text that can be read; the message says what it is."""


def decoded(blob: bytes) -> tuple[str, int]:
    """The text of a file's bytes and how many of its characters are U+FFFD because they were no
    UTF-8; `UnreadableError` when the bytes are no text.
    """
    for mark, encoding in _MARKS:
        if blob.startswith(mark):
            return _strictly(blob, encoding), 0
    if b"\0" in blob:
        if encoding := _unmarked_utf16(blob):
            return _strictly(blob, encoding), 0
        raise UnreadableError("binary (it holds NUL bytes)")
    text = blob.decode(errors="replace")
    broken = text.count("\ufffd") - blob.count("\ufffd".encode())
    if broken > BROKEN_FREE + BROKEN_SHARE_MAX * len(text):
        raise UnreadableError(
            f"not UTF-8 ({100 * broken / len(text):.0f} % of its characters are broken); if it is "
            "text in another encoding, convert it: iconv -f ENCODING -t UTF-8"
        )
    head = text[:_HEAD_CHARACTERS]
    if sum(map(head.count, _CONTROLS)) > BROKEN_FREE + BROKEN_SHARE_MAX * len(head):
        raise UnreadableError("binary (it is full of control characters)")
    return text, broken


def _strictly(blob: bytes, encoding: str) -> str:
    try:
        return blob.decode(encoding)
    except UnicodeDecodeError as error:
        raise UnreadableError(
            f"damaged: its byte-order mark says {encoding.removesuffix('-sig').upper()}, "
            f"byte {error.start} does not fit"
        ) from error


def _unmarked_utf16(blob: bytes) -> str:
    """The kind of UTF-16 of a text without a mark, told by the NULs of its Latin letters; empty if
    it is none.
    """
    head = blob[:_HEAD_CHARACTERS]
    if len(blob) % 2 or len(head) < 8:
        return ""
    low, high = head[::2].count(0), head[1::2].count(0)
    half = len(head) // 2
    for encoding, filled, empty in (("utf-16-le", high, low), ("utf-16-be", low, high)):
        if filled > 0.7 * half and empty == 0:
            try:
                text = blob.decode(encoding)
            except UnicodeDecodeError:
                return ""
            printed = sum(character.isprintable() or character.isspace() for character in text)
            return encoding if printed > (1 - BROKEN_SHARE_MAX) * len(text) else ""
    return ""
