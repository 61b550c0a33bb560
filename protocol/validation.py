"""pydantic's findings in words for a person: the field, the expected value, the one found."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from protocol.errors import SettingsError

NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
"""A run's name: it stands in names of files and in lines of shells."""

SHA256 = r"^([0-9a-f]{64})?$"
"""A SHA-256, or none."""

PATTERN_WORDS = {
    NAME: "1 to 63 letters, digits, '.', '_' and '-', a letter or digit first, no spaces",
    SHA256: "64 hexadecimal characters in lower case, or none",
}
"""The patterns of a run file, in words."""

FOUND_CHARACTERS = 120
"""Characters of a wrong value that an error shows: its reader has the file."""


def problems_text(error: ValidationError, *, unknown_field: str = "no such field") -> str:
    """Every wrong field of `error` in one line; `unknown_field` is said of a field that is none."""
    return "; ".join(_in_words(dict(problem), unknown_field) for problem in error.errors())


def _in_words(problem: Mapping[str, Any], unknown_field: str) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "fields together"
    if problem["type"] == "extra_forbidden":
        return f"{field}: {unknown_field}"
    expected = _expected(problem)
    if not problem["loc"]:
        return f"{field}: {expected}"
    return f"{field}: expected {expected}, found {_shown(problem['input'])}"


def _expected(problem: Mapping[str, Any]) -> str:
    """The expected value, without pydantic's beginnings of a sentence."""
    words: str = problem["msg"]
    if problem["type"] == "string_pattern_mismatch":
        pattern = problem["ctx"]["pattern"]
        return PATTERN_WORDS.get(pattern, f"text that matches {pattern}")
    if problem["type"] == "int_parsing":
        return "a whole number"
    for beginning in ("Input should be ", "Value error, ", "String should have "):
        words = words.removeprefix(beginning)
    return words


def _shown(value: object) -> str:
    """The value that was found, or its beginning."""
    text = repr(value)
    return text if len(text) <= FOUND_CHARACTERS else f"{text[:FOUND_CHARACTERS]}..."


def require_utf8(text: str, origin: str) -> None:
    """`SettingsError` for text that a reader of UTF-8 made of another encoding."""
    is_utf16 = len(text) >= 4 and "\0" in text[:4]
    if is_utf16 or "\ufffd" in text:  # which stands for what does not decode
        found = "UTF-16" if is_utf16 else "another encoding"
        raise SettingsError(f"{origin}: expected UTF-8, found {found}: save it as UTF-8")
