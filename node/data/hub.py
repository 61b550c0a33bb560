"""Data sets of Hugging Face's hub: `datasets:NAME[@REVISION][:SPLIT[:COLUMN]]`.

Further parts may be keyed, in any order: `datasets:NAME:config=C:split=S:column=T:revision=R`.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from node.data.reading import Document, Report, row_documents
from node.data.rows import TEXT_COLUMN, Row
from protocol.errors import DataError

PREFIX = "datasets:"

SYNTAX = "datasets:NAME[@REVISION][:config=CONFIG][:split=SPLIT][:column=COLUMN]"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A data set of the hub, as a person names it."""

    name: str
    """Its name, for example "Salesforce/wikitext"."""

    revision: str | None = None
    """Commit, branch or tag; None: the newest."""

    config: str | None = None
    """Configuration, where the data set has several."""

    split: str = "train"
    """Split to read."""

    column: str = TEXT_COLUMN
    """Column that holds the text."""

    @classmethod
    def parse(cls, spec: str) -> Self:
        """The source that `spec` names; `DataError` for one that says something else."""
        whole, *parts = spec.removeprefix(PREFIX).split(":")
        name, _, revision = whole.partition("@")
        fields = {"revision": revision} if revision else {}
        places = iter(("split", "column"))
        for part in parts:
            key, keyed, value = part.partition("=")
            if not keyed:
                key, value = next(places, ""), part
            if key not in ("revision", "config", "split", "column") or not value:
                raise DataError(f"{spec}: expected {SYNTAX}, got {part!r}")
            if key in fields:
                raise DataError(f"{spec}: expected one {key}, got {fields[key]!r} and {value!r}")
            fields[key] = value
        if not name:
            raise DataError(f"{spec}: expected {SYNTAX}, got no name")
        return cls(name, **fields)


def hub_documents(spec: str, report: Report) -> Iterator[Document]:
    """Rows of a data set of the hub, streamed; rows without text are reported."""
    source = HubSource.parse(spec)
    origin = PREFIX + source.name
    import datasets

    if source.revision is None:
        report(
            origin, "no @REVISION is named: another day, and another volunteer, may get other text"
        )
    try:
        rows = datasets.load_dataset(
            source.name,
            source.config,
            split=source.split,
            revision=source.revision,
            streaming=True,
        )
        checked = _checked(rows, source.column, origin)
        yield from row_documents(checked, f"{source.name}/{source.split}", source.column, report)
    except DataError:
        raise
    except (
        Exception
    ) as error:  # the hub, the network and the data set's own format fail in many ways
        problem = " ".join(str(error).split())
        raise DataError(f"{origin}: cannot be read: {problem[:400]}{_remedy(problem)}") from error


def _checked(rows: Iterable[dict[str, Any]], column: str, origin: str) -> Iterator[Row]:
    for number, row in enumerate(rows):
        if column not in row:
            raise DataError(
                f"{origin}: expected a column {column!r}, found {', '.join(sorted(row))}; name "
                f"one: {SYNTAX}"
            )
        yield number, row


def _remedy(problem: str) -> str:
    """Advice on the failures that a person can mend."""
    words = problem.lower()
    if "config" in words and ("missing" in words or "pick one" in words or "not found" in words):
        return f"; name one: {SYNTAX}"
    if any(word in words for word in ("gated", "401", "403", "unauthorized", "authenticat")):
        return "; a gated or private data set needs HF_TOKEN in the environment"
    if "split" in words:
        return f"; name a split that there is: {SYNTAX}"
    return ""
