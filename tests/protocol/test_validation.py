"""Pydantic's findings in words: field, expected, found."""

from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

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
