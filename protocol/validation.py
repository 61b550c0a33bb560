"""What pydantic found wrong, in words for a person: field, what was expected, what was found."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from protocol.errors import SettingsError
from protocol.sections.removed import removed_text


def problems_text(error: ValidationError, *, unknown_field: str = "no such field") -> str:
    """Every wrong field of `error` in one line; `unknown_field` is said of a field that is none,
    unless it was one once.
    """
    return "; ".join(_in_words(dict(problem), unknown_field) for problem in error.errors())


def _in_words(problem: Mapping[str, Any], unknown_field: str) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "fields together"
    if problem["type"] == "extra_forbidden":
        return f"{field}: {removed_text(field, problem['input']) or unknown_field}"
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if not problem["loc"]:
        return f"{field}: {expected}"
    return f"{field}: expected {expected}, found {problem['input']!r}"


def require_utf8(text: str, origin: str) -> None:
    """`SettingsError` for text that a reader of UTF-8 made of another encoding."""
    is_utf16 = len(text) >= 4 and "\0" in text[:4]
    if is_utf16 or "\ufffd" in text:  # which stands for what does not decode
        found = "UTF-16" if is_utf16 else "another encoding"
        raise SettingsError(f"{origin}: expected UTF-8, found {found}: save it as UTF-8")
