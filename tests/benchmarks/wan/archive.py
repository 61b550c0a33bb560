"""Files of the benchmark's documents: new ones alone, kept ones together.

A trial that was just measured, a line that was just checked and a curve in training are a JSON file
each in a working directory. The report merges them into one file with one document per line, which
is what the repository keeps.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from protocol.errors import DataError
from tests.benchmarks.records import read_records, write_records


@dataclass(frozen=True, slots=True)
class Archive:
    """Documents by name: `cable-ddp` is a trial, `links-cable` its lines, `curve-adamw` a curve."""

    path: Path
    """The merged file."""

    directory: Path
    """The working directory; its documents replace merged ones."""

    def documents(self) -> dict[str, Any]:
        """All documents, by name in alphabetical order; `DataError` names a file that holds no
        JSON.
        """
        found = {}
        for number, record in enumerate(read_records(self.path), 1):
            try:
                found[record["name"]] = record["document"]
            except (TypeError, KeyError) as error:
                raise DataError(
                    f"{self.path}, line {number}: expected a name and a document"
                ) from error
        for path in sorted(self.directory.glob("*.json")):
            try:
                found[path.stem] = json.loads(path.read_bytes())
            except ValueError as error:
                raise DataError(
                    f"{path}: expected JSON, got {error}; remove it to measure again"
                ) from error
        return {name: found[name] for name in sorted(found)}

    def merge(self) -> None:
        """Put the working directory's documents into the merged file."""
        documents = self.documents()
        write_records(
            self.path, [{"name": name, "document": documents[name]} for name in documents]
        )
