"""Where text comes from."""

import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from node.data.documents import documents, library_documents
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


def _hub(monkeypatch: pytest.MonkeyPatch, load: Any) -> None:
    module = ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


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
    with pytest.raises(DataError, match=r"expected a text file, a directory"):
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


def test_a_data_set_gives_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def load(name: str, *, split: str, streaming: bool) -> list[dict[str, str]]:
        calls.append((name, split, streaming))
        return [{"story": "once"}, {"story": "upon"}]

    _hub(monkeypatch, load)
    found = list(documents(["datasets:somebody/tales:test:story"]))
    assert found == [("somebody/tales/test/0", "once"), ("somebody/tales/test/1", "upon")]
    assert calls == [("somebody/tales", "test", True)]


def test_a_data_set_without_the_column_says_which_there_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _hub(monkeypatch, lambda name, **_: [{"story": "once", "author": "me"}])
    with pytest.raises(DataError, match=r"expected a column 'text', found author, story"):
        list(documents(["datasets:tales"]))


def test_an_unreachable_hub_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str, **_: object) -> Iterator[dict[str, str]]:
        raise ConnectionError("no route\nto host")

    _hub(monkeypatch, load)
    with pytest.raises(DataError, match=r"datasets:tales: cannot be read: no route to host"):
        list(documents(["datasets:tales"]))


def test_a_missing_datasets_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"pip install 'lockstep-train\[datasets\]'"):
        list(documents(["datasets:tales"]))
