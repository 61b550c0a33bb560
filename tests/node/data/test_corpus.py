"""Samples of prepared data."""

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from node.data.corpus import Corpus
from node.data.manifest import Manifest, read_manifest
from node.data.prepare import prepare
from node.data.tokenizer import ByteTokenizer
from protocol.errors import DataError, VersionError
from protocol.shuffle import samples_of

SHARD_TOKENS = 1000


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    generator = np.random.default_rng(5)
    documents = [
        (f"document-{number}", bytes(generator.integers(32, 127, 60).astype(np.uint8)).decode())
        for number in range(200)
    ]
    prepare(documents, tmp_path, ByteTokenizer(), source="tests", shard_tokens_max=SHARD_TOKENS)
    return tmp_path


def _all_windows(directory: Path, length: int, split: str = "train") -> list[list[int]]:
    """Every window by definition, shard by shard."""
    windows = []
    for shard in read_manifest(directory).splits[split]:
        tokens = np.fromfile(directory / shard.file, "<u2").tolist()
        starts = range(0, len(tokens) - length, length)
        windows += [tokens[start : start + length + 1] for start in starts]
    return windows


def _rewrite_manifest(directory: Path, **changes: object) -> None:
    path = directory / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize("length", [1, 7, 64, 99, 100, 999])
def test_samples_are_the_windows_that_stay_inside_a_shard(directory: Path, length: int) -> None:
    corpus, expected = Corpus.open(directory), _all_windows(directory, length)
    assert corpus.samples(length) == len(expected)
    batch = corpus.batch(0, len(expected), length, seed=3)
    assert batch.dtype == np.int64
    assert batch.shape == (len(expected), length + 1)
    order = samples_of(0, len(expected), len(expected), 3)
    assert batch.tolist() == [expected[number] for number in order]
    assert sorted(map(tuple, batch.tolist())) == sorted(map(tuple, expected))


def test_a_batch_runs_on_into_the_next_epoch_and_any_cut_is_the_same(directory: Path) -> None:
    corpus = Corpus.open(directory)
    samples = corpus.samples(64)
    whole = corpus.batch(samples - 5, 10, 64, seed=1)
    parts = [corpus.batch(samples - 5 + first, 2, 64, seed=1) for first in range(0, 10, 2)]
    assert np.array_equal(whole, np.concatenate(parts))
    assert not np.array_equal(whole, corpus.batch(samples - 5, 10, 64, seed=2))


def test_validation_windows_are_fixed_and_evenly_spaced(directory: Path) -> None:
    corpus, windows = Corpus.open(directory), _all_windows(directory, 16, "validation")
    assert corpus.samples(16, "validation") == len(windows) > 8
    chosen = [windows.index(window) for window in corpus.validation(4, 16).tolist()]
    assert chosen[0] == 0
    assert max(np.diff(chosen)) - min(np.diff(chosen)) <= 1
    assert np.array_equal(corpus.validation(4, 16), Corpus.open(directory).validation(4, 16))
    assert corpus.validation(10**6, 16).tolist() == windows


def test_too_little_text_for_a_sample_says_how_much_there_is(directory: Path) -> None:
    with pytest.raises(
        DataError, match=r"at least 1001 tokens in the train split.*the longest has 1000"
    ):
        Corpus.open(directory).samples(1000)


def test_a_manifest_survives_its_json(directory: Path) -> None:
    manifest = read_manifest(directory)
    blob = (directory / "manifest.json").read_bytes()
    assert manifest.to_json() == blob
    assert Manifest.from_json(blob, "here") == manifest


def test_verifying_reports_every_byte(directory: Path) -> None:
    seen: list[tuple[int, int]] = []
    Corpus.open(directory, verify=True, progress=lambda *done: seen.append(done))
    total = sum(path.stat().st_size for path in directory.glob("*.bin"))
    assert seen[-1] == (total, total)


def test_a_shard_of_the_wrong_size_is_found_without_verifying(directory: Path) -> None:
    with (directory / "train-00001.bin").open("ab") as file:
        file.write(b"xx")
    with pytest.raises(DataError, match=r"train-00001\.bin: expected 2,000 bytes, got 2,002"):
        Corpus.open(directory)


def test_a_missing_shard_is_named(directory: Path) -> None:
    (directory / "train-00001.bin").unlink()
    with pytest.raises(DataError, match=r"cannot read .*train-00001\.bin"):
        Corpus.open(directory)


def test_a_changed_shard_is_found_by_verifying(directory: Path) -> None:
    path = directory / "train-00002.bin"
    blob = bytearray(path.read_bytes())
    blob[500] ^= 1
    path.write_bytes(blob)
    Corpus.open(directory)
    with pytest.raises(
        DataError, match=r"train-00002\.bin: expected SHA-256 [0-9a-f]{64}, got [0-9a-f]{64}"
    ):
        Corpus.open(directory, verify=True)


def test_a_token_beyond_the_vocabulary_never_reaches_the_model(directory: Path) -> None:
    path = directory / "train-00000.bin"
    blob = bytearray(path.read_bytes())
    blob[101] = 0xFF
    path.write_bytes(blob)
    corpus = Corpus.open(directory)
    with pytest.raises(
        DataError, match=r"train-00000\.bin: expected tokens below 257, got 65\d\d\d"
    ):
        corpus.batch(0, corpus.samples(64), 64, seed=0)


def test_a_directory_without_manifest_is_not_a_corpus(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a prepared corpus.*lockstep data prepare"):
        Corpus.open(tmp_path)


@pytest.mark.parametrize("blob", [b"", b"\xff", b"[]", b"[" * 100_000])
def test_a_damaged_manifest_is_bad_data(directory: Path, blob: bytes) -> None:
    (directory / "manifest.json").write_bytes(blob)
    with pytest.raises(DataError, match=r"manifest\.json: expected"):
        Corpus.open(directory)


@pytest.mark.parametrize(
    "field", ["source", "tokenizer", "vocabulary_size", "dtype", "documents", "splits"]
)
def test_a_manifest_with_a_wrong_field_is_bad_data(directory: Path, field: str) -> None:
    _rewrite_manifest(directory, **{field: None})
    with pytest.raises(DataError, match=r"expected the fields of a manifest"):
        Corpus.open(directory)


def test_a_manifest_of_another_version_says_so(directory: Path) -> None:
    _rewrite_manifest(directory, version=1)
    with pytest.raises(VersionError, match=r"expected version 2, got 1; prepare the data again"):
        Corpus.open(directory)


@pytest.mark.parametrize("value", [0, -1, 2**21, "8192", None, True])
def test_ranges_of_a_wrong_length_are_bad_data(directory: Path, value: object) -> None:
    _rewrite_manifest(directory, range_tokens=value)
    with pytest.raises(DataError, match=r"expected the fields of a manifest"):
        Corpus.open(directory)


@pytest.mark.parametrize("file", ["../secret", "/etc/passwd", "..", "a\\b", ""])
def test_a_manifest_cannot_reach_outside_its_directory(directory: Path, file: str) -> None:
    shard = {"file": file, "tokens": 5, "sha256": "0" * 64}
    _rewrite_manifest(directory, splits={"train": [shard], "validation": [shard]})
    with pytest.raises(DataError, match=r"fields of a manifest.*splits.train\[0\].file"):
        Corpus.open(directory)


def test_an_empty_split_is_bad_data(directory: Path) -> None:
    _rewrite_manifest(directory, splits={"train": [], "validation": []})
    with pytest.raises(DataError, match=r"length >= 1 - at `\$.splits"):
        Corpus.open(directory)


def test_what_is_no_part_of_a_manifest_takes_no_memory(directory: Path) -> None:
    value = json.loads((directory / "manifest.json").read_text())
    nonsense = "[" + "[]," * 500_000 + "[]]"
    for place in (value, value["tokenizer"], value["documents"], value["splits"]):
        place["more"] = "NONSENSE"
    blob = json.dumps(value).replace('"NONSENSE"', nonsense).encode()
    tracemalloc.start()
    try:
        found = Manifest.from_json(blob, "here")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found == read_manifest(directory)
    assert peak < len(blob) // 10


@pytest.mark.parametrize("ending", ["\n", "x"])
def test_a_name_of_a_shard_ends_with_its_kind(directory: Path, ending: str) -> None:
    shard = {"file": f"train-00000.bin{ending}", "tokens": 5, "sha256": "0" * 64}
    _rewrite_manifest(directory, splits={"train": [shard], "validation": [shard]})
    with pytest.raises(DataError, match="fields of a manifest"):
        Corpus.open(directory)


def test_an_enormous_manifest_is_not_read(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("node.data.manifest.MANIFEST_BYTES_MAX", 10)
    with pytest.raises(DataError, match="expected at most 10 bytes"):
        Corpus.open(directory)
