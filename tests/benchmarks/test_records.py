"""Documents come back from disk as they were, whether compressed or not."""

from pathlib import Path

import pytest

from protocol.errors import DataError
from tests.benchmarks.records import read_records, write_records

DOCUMENTS = [
    {"name": "a", "loss": 0.1 + 0.2, "steps": [1, 2]},
    {"name": "b", "loss": 5e-324, "steps": []},
]


@pytest.mark.parametrize("name", ["results.jsonl", "results.jsonl.xz"])
def test_documents_come_back_equal(tmp_path: Path, name: str) -> None:
    path = tmp_path / "data" / name
    write_records(path, DOCUMENTS)
    assert read_records(path) == DOCUMENTS


def test_a_file_that_does_not_exist_has_no_documents(tmp_path: Path) -> None:
    assert read_records(tmp_path / "none.jsonl") == []


def test_compressed_files_are_smaller(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.xz"
    for path in (plain, packed):
        write_records(path, DOCUMENTS * 100)
    assert packed.stat().st_size < plain.stat().st_size / 10


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl"
    path.write_text('{"fine": 1}\n{"torn": \n')
    with pytest.raises(DataError, match=r"odd\.jsonl, line 2: expected JSON"):
        read_records(path)


def test_a_file_that_is_not_compressed_as_its_name_says_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.jsonl.xz"
    path.write_bytes(b"plain text")
    with pytest.raises(DataError, match=r"odd\.jsonl\.xz: expected text"):
        read_records(path)
