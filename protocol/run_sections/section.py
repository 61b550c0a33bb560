"""The base of the run file's sections."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Frozen values; unknown fields and other types are errors, docstrings describe the fields."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )
