"""What pydantic found wrong, for a person: field, what was expected, what was found."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError


def problems_text(error: ValidationError, *, unknown_field: str = "no such field") -> str:
    """Every wrong field of `error` in one line; `unknown_field` is said of a field that is none."""
    return "; ".join(_in_words(dict(problem), unknown_field) for problem in error.errors())


def _in_words(problem: Mapping[str, Any], unknown_field: str) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "fields together"
    if problem["type"] == "extra_forbidden":
        return f"{field}: {unknown_field}"
    expected = problem["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    if not problem["loc"]:
        return f"{field}: {expected}"
    return f"{field}: expected {expected}, found {problem['input']!r}"
