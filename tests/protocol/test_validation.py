"""Pydantic's findings in words: field, expected, found."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from protocol.runfile import RunSpec
from protocol.validation import problems_text


class Inner(BaseModel):
    count: int = Field(default=1, ge=1)


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid")

    inner: Inner = Inner()
    name: str = "x"

    @model_validator(mode="after")
    def _check(self) -> "Outer":
        if self.name == "together":
            raise ValueError("name and inner do not fit")
        return self


def problems(values: dict[str, Any], **words: str) -> str:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(values)
    return problems_text(caught.value, **words)


def test_a_wrong_value_is_named_by_its_path_with_expected_and_found() -> None:
    expected = "inner.count: expected greater than or equal to 1, found 0"
    assert problems({"inner": {"count": 0}}) == expected


def test_every_problem_is_listed() -> None:
    text = problems({"inner": {"count": 0}, "name": 7})
    assert text == (
        "inner.count: expected greater than or equal to 1, found 0; "
        "name: expected a valid string, found 7"
    )


def test_an_unknown_field_is_called_so_in_the_caller_s_words() -> None:
    assert problems({"colour": 1}) == "colour: no such field"
    assert problems({"colour": 1}, unknown_field="not ours") == "colour: not ours"


def test_a_problem_of_several_fields_names_them_together() -> None:
    assert problems({"name": "together"}) == "fields together: name and inner do not fit"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": "My first run"}, "name: expected 1 to 63 letters, digits, '.', '_' and '-', a"),
        ({"genesis_sha256": "no"}, "genesis_sha256: expected 64 hexadecimal characters in lower"),
        ({"model": {"type": ""}}, "model.type: expected at least 1 character, found ''"),
        ({"name": "x" * 500}, f"found '{'x' * 119}..."),
    ],
)
def test_patterns_and_lengths_are_said_without_the_words_of_a_library(
    fields: dict[str, object], words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        RunSpec.model_validate(fields)
    assert words in problems_text(caught.value)
