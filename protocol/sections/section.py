"""The base class of all sections of the run file."""

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """A table of the run file: frozen, without unknown fields, without conversions."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )
