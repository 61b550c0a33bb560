"""Text that somebody else wrote: names, addresses, reasons.

Foreign text reaches logs, terminals and pages. So the border where it enters either refuses it
(`require_plain`: a name in a hello) or cleans it (`clean`: the reason in a refusal; `one_line`: a
name within a sentence). What passes
has no control characters, no line breaks and no characters that change the direction of writing:
it can neither forge a line of a log nor command a terminal.
"""

from typing import Any

from protocol.errors import RemoteProtocolError
from protocol.limits import TEXT_BYTES_MAX

_REPLACEMENT = "?"


def clean(text: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """The text with every unprintable character replaced, cut to `bytes_max` bytes of UTF-8."""
    if len(text) > bytes_max:
        text = text[:bytes_max]
    if not text.isprintable():
        text = "".join(character if character.isprintable() else _REPLACEMENT for character in text)
    encoded = text.encode()
    return text if len(encoded) <= bytes_max else encoded[:bytes_max].decode(errors="ignore")


def one_line(text: str, length_max: int = TEXT_BYTES_MAX) -> str:
    """The text in one line of at most `length_max` characters, without control characters
    and without marks that change the direction or the order of what follows.
    """
    printable = "".join(each if each.isprintable() else " " for each in text[: 4 * length_max])
    line = " ".join(printable.split())
    return line if len(line) <= length_max else line[: length_max - 1] + "…"


def require_plain(text: str, sender: str, bytes_max: int = TEXT_BYTES_MAX) -> str:
    """The text, if it is short and printable; else `RemoteProtocolError`."""
    if (size := len(text.encode(errors="replace"))) > bytes_max:
        raise RemoteProtocolError(
            f"{sender}: expected texts of at most {bytes_max} bytes, got {size}"
        )
    if not text.isprintable():
        raise RemoteProtocolError(
            f"{sender}: expected text without control characters, got {text[:40]!a}"
        )
    return text


def clean_document(value: Any, text_bytes_max: int = 4 * TEXT_BYTES_MAX) -> Any:
    """A decoded JSON document with every text in it cleaned, keys too."""
    match value:
        case str():
            return clean(value, text_bytes_max)
        case dict():
            return {
                clean(str(key), text_bytes_max): clean_document(item, text_bytes_max)
                for key, item in value.items()
            }
        case list() | tuple():
            return [clean_document(item, text_bytes_max) for item in value]
    return value
