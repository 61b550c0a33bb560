"""Preparing text into shards."""

import errno
import hashlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.data.corpus import Corpus
from node.data.manifest import Manifest, read_manifest
from node.data.prepare import VALIDATION_PARTS, Document, prepare, prepare_builtin, prepare_from
from node.data.tokenizer import ByteTokenizer
from protocol.errors import DataError, SettingsError, StorageError


def _documents(count: int = 200) -> list[Document]:
    return [
        (f"document-{number}", f"text number {number}\n" * (number % 7 + 1))
        for number in range(count)
    ]


def _prepare(
    out_dir: Path, sources: object = None, shard_tokens_max: int = 1000, source: str = "tests"
) -> Manifest:
    documents = _documents() if sources is None else sources
    return prepare(
        documents,  # type: ignore[arg-type]
        out_dir,
        ByteTokenizer(),
        source=source,
        shard_tokens_max=shard_tokens_max,
    )


def _texts(out_dir: Path, split: str) -> list[str]:
    """Documents of a split, read straight from the files."""
    manifest = read_manifest(out_dir)
    tokens = np.concatenate(
        [np.fromfile(out_dir / shard.file, manifest.dtype) for shard in manifest.splits[split]]
    )
    ends = np.flatnonzero(tokens == 256)
    assert ends[-1] == len(tokens) - 1
    return [
        bytes(piece[piece < 256].astype(np.uint8)).decode()
        for piece in np.split(tokens, ends + 1)[:-1]
    ]


def _is_validation(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little") % 50 == 0


def _never_read() -> Iterator[Document]:
    raise AssertionError("the sources should not be read")
    yield "", ""


def test_every_document_is_in_the_split_of_its_name_once(tmp_path: Path) -> None:
    manifest = _prepare(tmp_path)
    documents = _documents()
    assert VALIDATION_PARTS == 50
    assert 0 < manifest.documents["validation"] < 20
    assert sorted(_texts(tmp_path, "validation")) == sorted(
        text for name, text in documents if _is_validation(name)
    )
    assert sorted(_texts(tmp_path, "train")) == sorted(
        text for name, text in documents if not _is_validation(name)
    )
    assert sum(manifest.documents.values()) == 200


def test_more_text_moves_nothing_across(tmp_path: Path) -> None:
    _prepare(tmp_path / "few", _documents(120))
    _prepare(tmp_path / "many", _documents(240))
    assert set(_texts(tmp_path / "few", "validation")) <= set(
        _texts(tmp_path / "many", "validation")
    )
    assert set(_texts(tmp_path / "few", "train")) <= set(_texts(tmp_path / "many", "train"))


def test_shards_are_full_but_for_the_last_and_say_what_they_are(tmp_path: Path) -> None:
    manifest = _prepare(tmp_path)
    sizes = [shard.tokens for shard in manifest.splits["train"]]
    assert len(sizes) > 5
    assert set(sizes[:-1]) == {1000}
    for shard in manifest.splits["train"]:
        blob = (tmp_path / shard.file).read_bytes()
        assert (len(blob), hashlib.sha256(blob).hexdigest()) == (2 * shard.tokens, shard.sha256)
    assert manifest.splits["train"][0].file == "train-00000.bin"


def test_a_small_corpus_has_the_document_of_the_least_hash_for_validation(tmp_path: Path) -> None:
    documents = [(name, name * 9) for name in ("alpha", "beta", "gamma")]
    assert not any(_is_validation(name) for name, _ in documents)
    _prepare(tmp_path, documents)
    least = min(documents, key=lambda pair: hashlib.sha256(pair[0].encode()).digest()[7::-1])
    assert _texts(tmp_path, "validation") == [least[1]]
    assert len(_texts(tmp_path, "train")) == 2


@pytest.mark.parametrize("documents", [[], [("one", "text")], [("one", "text"), ("blank", " \n")]])
def test_fewer_than_two_documents_are_refused(tmp_path: Path, documents: list[Document]) -> None:
    with pytest.raises(DataError, match=r"tests: expected at least two documents"):
        _prepare(tmp_path, documents)
    assert not (tmp_path / "manifest.json").exists()


def test_one_long_text_is_cut_at_line_ends_into_both_splits(tmp_path: Path) -> None:
    text = "".join(f"line {number}\n" for number in range(50_000)) + "x" * 200_000
    _prepare(tmp_path, [("book", text)], shard_tokens_max=10**6)
    train, validation = _texts(tmp_path, "train"), _texts(tmp_path, "validation")
    assert sum(map(len, train + validation)) == len(text)
    assert max(map(len, train + validation)) <= 2**16
    assert all(piece in text for piece in train + validation)
    assert sum(piece.endswith("\n") for piece in train + validation) >= 8


def test_the_digest_names_the_tokens_and_not_where_they_came_from(tmp_path: Path) -> None:
    first, second = (
        _prepare(tmp_path / "a", source="my disk"),
        _prepare(tmp_path / "b", source="your disk"),
    )
    assert first.digest == second.digest
    assert _prepare(tmp_path / "c", _documents(199)).digest != first.digest


def test_shards_without_room_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="shard_tokens_max: expected at least 1, got 0"):
        _prepare(tmp_path, shard_tokens_max=0)


def test_progress_counts_documents_and_tokens(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    manifest = prepare(
        _documents(),
        tmp_path,
        ByteTokenizer(),
        source="tests",
        progress=lambda *done: seen.append(done),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (200, manifest.tokens("train") + manifest.tokens("validation"))


def test_a_prepared_directory_is_not_prepared_again(tmp_path: Path) -> None:
    manifest = _prepare(tmp_path)
    assert _prepare(tmp_path, _never_read()) == manifest


def test_another_corpus_in_the_directory_is_never_overwritten(tmp_path: Path) -> None:
    manifest = _prepare(tmp_path)
    with pytest.raises(
        DataError, match=r"expected a corpus of 'others', found one of 'tests'; choose another"
    ):
        _prepare(tmp_path, _never_read(), source="others")
    assert read_manifest(tmp_path) == manifest


def test_the_leftovers_of_a_dead_preparer_count_for_nothing(tmp_path: Path) -> None:
    clean = _prepare(tmp_path / "clean")
    dirty = tmp_path / "dirty"
    dirty.mkdir()
    (dirty / "train-00000.bin").write_bytes(b"half a sha")
    (dirty / "train-00099.bin").write_bytes(b"of a larger corpus")
    (dirty / "train-00001.bin.part-abc").write_bytes(b"torn")
    with pytest.raises(DataError, match="found none"):
        Corpus.open(dirty)
    assert _prepare(dirty).digest == clean.digest
    assert {path.name for path in dirty.glob("*.bin*")} == {
        path.name for path in (tmp_path / "clean").glob("*.bin")
    }


def test_a_full_disk_names_file_and_bytes_and_leaves_no_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(
        StorageError, match=r"disk is full.*train-00000\.bin, which needs 2,000 bytes"
    ):
        _prepare(tmp_path)
    monkeypatch.undo()
    assert not (tmp_path / "manifest.json").exists()
    assert _prepare(tmp_path).documents["train"] > 0


def test_large_vocabularies_take_four_bytes(tmp_path: Path) -> None:
    class Wide(ByteTokenizer):
        vocabulary_size = 2**16 + 1
        document_end = 2**16

    manifest = prepare(_documents(), tmp_path, Wide(), source="tests")
    assert manifest.dtype == "<u4"
    assert np.fromfile(tmp_path / "train-00000.bin", "<u4").max() == 2**16


def test_a_folder_whose_name_is_no_utf8_can_be_prepared_and_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "te\udcffxt"
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    for name, text in _documents(30):
        (folder / f"{name}.txt").write_text(text)
    manifest = prepare_from([str(folder)], tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest


def test_a_tokenizer_that_no_manifest_can_hold_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "text.txt").write_text("some text\n" * 100)
    monkeypatch.setattr("node.data.prepare.TOKENIZER_BYTES_MAX", 1000)
    with pytest.raises(SettingsError, match=r"tokenizer: expected at most 1,000 characters, got"):
        prepare_from([str(tmp_path / "text.txt")], tmp_path / "out", "bpe:280")
    assert not (tmp_path / "out" / "manifest.json").exists()


def test_a_person_prepares_a_folder_with_a_tokenizer_of_choice(tmp_path: Path) -> None:
    folder = tmp_path / "texts"
    folder.mkdir()
    for name, text in _documents(30):
        (folder / f"{name}.txt").write_text(text)
    manifest = prepare_from([str(folder)], tmp_path / "out", "bpe:280")
    corpus = Corpus.open(tmp_path / "out", verify=True)
    assert (manifest.vocabulary_size, sum(manifest.documents.values())) == (280, 30)
    assert "text number" in corpus.tokenizer.decode(corpus.validation(1, 8)[0].tolist())
    with pytest.raises(DataError, match="choose another directory"):
        prepare_from([str(folder)], tmp_path / "out", "bytes")
    with pytest.raises(SettingsError, match="tokenizer: expected"):
        prepare_from([str(folder)], tmp_path / "other", "letters")


def test_the_builtin_corpus_is_python_text_in_seconds(tmp_path: Path) -> None:
    manifest = prepare_builtin(tmp_path, byte_limit=500_000)
    assert 300_000 < manifest.tokens("train") + manifest.tokens("validation") < 520_000
    assert any("import " in text for text in _texts(tmp_path, "train"))
    assert list(_texts(tmp_path, "validation"))


PREPARER = """
import os, sys
from pathlib import Path
from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer
out_dir, log = Path(sys.argv[1]), sys.argv[2]

def sources():
    with open(log, "a") as file:
        file.write("read\\n")
    for number in range(3000):
        yield f"document-{number}", f"text number {number} " * 20
        if number == 2000 and len(sys.argv) > 3:
            print("halfway", flush=True)
            sys.stdin.read()

manifest = prepare(sources(), out_dir, ByteTokenizer(), source="tests", shard_tokens_max=10_000)
print(manifest.digest.hex())
"""


def _start(tmp_path: Path, *extra: str) -> "subprocess.Popen[str]":
    arguments = [
        sys.executable,
        "-c",
        PREPARER,
        str(tmp_path / "out"),
        str(tmp_path / "log"),
        *extra,
    ]
    return subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_four_processes_that_start_together_prepare_once(tmp_path: Path) -> None:
    processes = [_start(tmp_path) for _ in range(4)]
    digests = {process.communicate(timeout=60)[0].strip() for process in processes}
    assert {process.returncode for process in processes} == {0}
    assert digests == {read_manifest(tmp_path / "out").digest.hex()}
    assert (tmp_path / "log").read_text() == "read\n"


@pytest.mark.skipif(sys.platform == "win32", reason="kills with a POSIX signal")
def test_a_killed_preparer_does_not_block_the_next(tmp_path: Path) -> None:
    victim = _start(tmp_path, "wait")
    assert victim.stdout is not None
    assert victim.stdout.readline() == "halfway\n"
    assert list((tmp_path / "out").glob("train-*.bin")), "it should have begun"
    waiting = _start(tmp_path)
    victim.send_signal(signal.SIGKILL)
    victim.communicate(timeout=60)
    digest = waiting.communicate(timeout=60)[0].strip()
    assert digest == Corpus.open(tmp_path / "out", verify=True).manifest.digest.hex()
