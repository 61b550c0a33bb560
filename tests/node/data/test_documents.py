"""Where text comes from."""

import hashlib
import os
import sysconfig
from pathlib import Path

import pytest

from node.data.documents import Remarks, documents, library_documents
from protocol.errors import DataError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, content in {
        "b.txt": b"second",
        "a/deep.txt": b"first",
        "binary.dat": b"text \0 not",
        ".hidden": b"secret",
        ".git/config": b"secret",
        "latin.txt": b"caf\xe9",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_a_directory_gives_its_visible_text_files_in_order_under_relative_names(
    folder: Path,
) -> None:
    assert list(documents([str(folder)])) == [
        ("a/deep.txt", "first"),
        ("b.txt", "second"),
        ("latin.txt", "caf\ufffd"),
    ]


def test_a_hidden_folder_above_does_not_hide_what_a_person_names(folder: Path) -> None:
    assert list(documents([str(folder / ".git")])) == [("config", "secret")]


def test_a_file_goes_by_its_name_and_a_glob_by_paths(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert list(documents([str(folder / "b.txt")])) == [("b.txt", "second")]
    monkeypatch.chdir(folder)
    assert list(documents(["**/*.txt"])) == [
        ("a/deep.txt", "first"),
        ("b.txt", "second"),
        ("latin.txt", "caf\ufffd"),
    ]


def test_several_sources_keep_their_order(folder: Path) -> None:
    names = [name for name, _ in documents([str(folder / "b.txt"), str(folder / "a")])]
    assert names == ["b.txt", "deep.txt"]


@pytest.mark.parametrize("spec", ["nothing-here", "*.nothing", "empty"])
def test_a_source_that_is_not_there_is_named(folder: Path, spec: str) -> None:
    (folder / "empty").mkdir()
    with pytest.raises(DataError, match=r"expected a (text )?file"):
        list(documents([str(folder / spec)]))


def test_the_library_is_sorted_and_without_what_installations_lack() -> None:
    names = [name for name, _ in library_documents(2_000_000)]
    assert names == sorted(names, key=lambda name: Path(name).parts)
    assert "argparse.py" in names
    assert "asyncio/tasks.py" in names
    assert not any({"test", "tests", "site-packages"} & set(Path(name).parts) for name in names)


def test_the_library_stops_before_the_limit() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    sizes = [(root / name).stat().st_size for name, _ in library_documents(100_000)]
    assert 0 < sum(sizes) <= 100_000


def test_the_built_in_corpus_holds_the_very_bytes_of_its_files() -> None:
    root = Path(sysconfig.get_path("stdlib"))
    ours, theirs = hashlib.sha256(), hashlib.sha256()
    for name, text in library_documents(3_000_000):
        ours.update(text.encode(errors="replace"))
        theirs.update((root / name).read_bytes().decode(errors="replace").encode())
    assert ours.digest() == theirs.digest()


def test_what_a_directory_passes_over_is_counted_with_its_reason(folder: Path) -> None:
    (folder / "empty.txt").write_bytes(b"")
    (folder / "to-itself").symlink_to(folder)
    (folder / "to-nothing").symlink_to(folder / "missing")
    os.mkfifo(folder / "pipe")
    remarks = Remarks()
    assert len(list(documents([str(folder)], remarks))) == 3
    assert dict(remarks.shown) == {
        ".git": "hidden",
        ".hidden": "hidden",
        "binary.dat": "binary (it holds NUL bytes)",
        "empty.txt": "empty",
        "latin.txt": "1 characters are not UTF-8, each becomes U+FFFD",
        "pipe": "not a regular file",
        "to-itself": "a link to a directory",
        "to-nothing": "a link to nothing",
    }
    assert remarks.count == 8


def test_every_case_is_counted_and_the_first_are_kept() -> None:
    remarks = Remarks(shown_max=2)
    for number in range(5):
        remarks(f"file-{number}", "empty")
    assert (remarks.count, [name for name, _ in remarks.shown]) == (5, ["file-0", "file-1"])


def test_a_file_that_a_person_names_must_hold_text(folder: Path) -> None:
    with pytest.raises(DataError, match=r"binary\.dat: expected text, found binary"):
        list(documents([str(folder / "binary.dat")]))


def test_a_directory_without_any_text_says_what_was_found_instead(tmp_path: Path) -> None:
    (tmp_path / "picture.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    with pytest.raises(DataError, match=r"expected a text file.*picture\.png: binary"):
        list(documents([str(tmp_path)]))


def test_a_column_of_rows_can_be_named(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"story": "once"}\n{"story": "upon"}\n')
    assert list(documents([f"rows:{path}:story"])) == [
        ("rows.jsonl/0", "once"),
        ("rows.jsonl/1", "upon"),
    ]
    with pytest.raises(DataError, match=r"expected rows:FILE:COLUMN"):
        list(documents(["rows:file"]))
