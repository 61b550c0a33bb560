"""Published data: the samples of a directory, range by range from a server."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from node.data import prepare as preparing
from node.data.corpus import Corpus
from node.data.manifest import Manifest, read_manifest
from node.data.prepare import prepare
from node.data.publish import publish
from node.data.remote import fetcher
from node.data.remote.reader import FetchedShards, open_published
from node.data.remote.source import AwayError
from node.data.tokenizer import ByteTokenizer
from protocol.errors import DataError
from tests.support.data_server import DataServer, serving

RANGE_TOKENS = 100

LENGTH = 32

PATIENCE_S = 60
"""Longer than any answer of loopback takes on a machine that others use too."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """A local corpus of several shards with small ranges."""
    directory = tmp_path_factory.mktemp("corpus")
    documents = [(f"document {number}", f"text {number} " * 20) for number in range(200)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(preparing, "RANGE_TOKENS", RANGE_TOKENS)
        prepare(documents, directory, ByteTokenizer(), source="a test", shard_tokens_max=5_050)
    return Corpus.open(directory)


@pytest.fixture
def server(corpus: Corpus, tmp_path: Path) -> Iterator[DataServer]:
    publish(Path(corpus.origin), str(tmp_path / "published"))
    with serving(tmp_path / "published") as served:
        yield served


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetcher, "FIRST_PAUSE_MS", 1)
    monkeypatch.setattr(fetcher, "LONGEST_PAUSE_MS", 20)


def opened(corpus: Corpus, url: str, place: Path, cache_bytes: int = 10**6) -> Corpus:
    return open_published(url, corpus.manifest.digest.hex(), place, cache_bytes)


def until(condition: object) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_samples_are_those_of_the_directory(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    for length in (LENGTH, 99, 100, 250):
        count = min(40, corpus.samples(length))
        assert np.array_equal(remote.batch(3, count, length, 1), corpus.batch(3, count, length, 1))
        assert np.array_equal(remote.validation(9, length), corpus.validation(9, length))
    assert remote.tokenizer.decode(remote.validation(1, 8)[0].tolist()).count("text")
    remote.close()


def test_files_of_this_machine_have_a_url_too(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, f"file://{server.directory}", tmp_path / "kept")
    assert np.array_equal(remote.batch(0, 20, LENGTH, 1), corpus.batch(0, 20, LENGTH, 1))
    assert not server.asked
    remote.close()


def test_only_the_ranges_of_the_samples_are_fetched(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.asked.clear()
    remote.batch(0, 4, LENGTH, 1)
    ranges = [header for name, header in server.asked if name.endswith(".bin")]
    assert 4 <= len(ranges) <= 8, "a sample lies in one range or across two"
    for header in ranges:
        first, last = map(int, header.removeprefix("bytes=").split("-"))
        assert first % (2 * RANGE_TOKENS) == 0
        assert last - first < 2 * RANGE_TOKENS
    server.asked.clear()
    remote.batch(0, 4, LENGTH, 1)
    assert not server.asked, "they are kept"
    remote.close()


def test_what_is_kept_serves_the_next_process_although_the_server_is_away(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    first = opened(corpus, server.url, tmp_path / "kept")
    expected = first.batch(0, 4, LENGTH, 1)
    first.close()
    server.asked.clear()
    server.status = 503
    second = opened(corpus, server.url, tmp_path / "kept")
    assert np.array_equal(second.batch(0, 4, LENGTH, 1), expected)
    assert not server.asked
    second.close()


def test_a_round_is_fetched_beforehand_and_the_next_one_by_a_guess(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    for first in (0, 40):  # ten samples of every forty are this node's
        remote.expect([(first, 10)], LENGTH, 1, limit_s=PATIENCE_S)
    wanted = remote.batch(40, 10, LENGTH, 1)
    assert np.array_equal(wanted, corpus.batch(40, 10, LENGTH, 1))
    reader = remote._reader
    assert isinstance(reader, FetchedShards)
    until(lambda: not reader._fetcher._asked and reader._expected.empty())
    before = reader.ranges_awaited
    server.status = 503
    assert np.array_equal(remote.batch(80, 10, LENGTH, 1), corpus.batch(80, 10, LENGTH, 1))
    assert reader.ranges_awaited == before
    remote.close()


def test_a_wrong_byte_is_fetched_once_more(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    names = {shard.file for shard in corpus.manifest.splits["train"]}
    server.damaged = dict.fromkeys(names, 1)
    assert np.array_equal(remote.batch(0, 8, LENGTH, 1), corpus.batch(0, 8, LENGTH, 1))
    remote.close()


def test_damaged_data_are_named_in_one_sentence(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.damaged = {shard.file: 10**6 for shard in corpus.manifest.splits["train"]}
    with pytest.raises(
        DataError, match=r"train-0000\d\.bin: expected bytes [\d,]+ to [\d,]+ with SHA-256 .* twice"
    ):
        remote.batch(0, 1, LENGTH, 1)
    remote.close()


def test_damaged_digests_are_found_too(corpus: Corpus, server: DataServer, tmp_path: Path) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.damaged = {shard.digests_file: 10**6 for shard in corpus.manifest.splits["train"]}
    with pytest.raises(DataError, match=r"train-0000\d\.sha: expected bytes 0 to"):
        remote.batch(0, 1, LENGTH, 1)
    remote.close()


def test_no_more_is_read_than_was_asked_for(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.surplus_bytes = 50 * 1024**2
    with pytest.raises(DataError, match="are damaged"):
        remote.batch(0, 1, LENGTH, 1)
    assert remote.document()["fetched_bytes"] < 10_000
    remote.close()


def test_while_the_server_is_away_the_node_says_so_and_then_goes_on(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.status = 503
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.append(remote.batch(0, 4, LENGTH, 1)))
    reading.start()
    until(lambda: "status 503" in remote.document()["waits"])
    assert not found
    server.status = 0
    reading.join(PATIENCE_S)
    assert np.array_equal(np.asarray(found[0]), corpus.batch(0, 4, LENGTH, 1))
    assert remote.document()["waits"] == ""
    remote.close()


def test_a_reader_gives_up_at_the_bell(corpus: Corpus, server: DataServer, tmp_path: Path) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.status = 503
    remote.expect([(0, 4)], LENGTH, 1, limit_s=0.2)
    with pytest.raises(AwayError, match="no data to train on"):
        remote.batch(0, 4, LENGTH, 1)
    server.status = 0
    remote.expect([(0, 4)], LENGTH, 1, limit_s=PATIENCE_S)
    assert np.array_equal(remote.batch(0, 4, LENGTH, 1), corpus.batch(0, 4, LENGTH, 1))
    remote.close()


def test_closing_ends_every_wait(corpus: Corpus, server: DataServer, tmp_path: Path) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept")
    server.status = 503
    ended: list[str] = []

    def read() -> None:
        try:
            remote.batch(0, 4, LENGTH, 1)
        except AwayError as error:
            ended.append(str(error))

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: remote.document()["waits"])
    remote.close()
    reading.join(PATIENCE_S)
    assert ended == ["no data to train on: the node ends"]


def test_a_server_without_ranges_is_refused_in_words(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    server.knows_ranges = False
    with pytest.raises(DataError, match=r"serve the data from a server that knows ranges"):
        opened(corpus, server.url, tmp_path / "kept")


def test_a_server_with_other_data_or_none_is_refused(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    with pytest.raises(DataError, match="expected the data with manifest 0000"):
        open_published(server.url, "0" * 64, tmp_path / "kept", 10**6)
    (server.directory / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"expected a file of the run, got status 404"):
        opened(corpus, server.url, tmp_path / "kept")
    with pytest.raises(AwayError, match="does not answer"):
        opened(corpus, "http://127.0.0.1:9/data", tmp_path / "kept")


def test_a_manifest_is_parsed_only_if_its_bytes_have_the_digest(
    corpus: Corpus, server: DataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened(corpus, server.url, tmp_path / "kept").close()
    monkeypatch.setattr(Manifest, "from_json", None)
    path = server.directory / "manifest.json"
    path.write_bytes(path.read_bytes() + b" ")
    for place in ("kept", "new"):
        (tmp_path / place).mkdir(exist_ok=True)
        (tmp_path / place / "manifest.json").write_bytes(path.read_bytes())
        with pytest.raises(DataError, match="expected the data with manifest"):
            opened(corpus, server.url, tmp_path / place)


def test_a_small_cache_is_enough_and_keeps_its_bound(
    corpus: Corpus, server: DataServer, tmp_path: Path
) -> None:
    remote = opened(corpus, server.url, tmp_path / "kept", cache_bytes=2_000)
    assert np.array_equal(remote.batch(0, 64, LENGTH, 1), corpus.batch(0, 64, LENGTH, 1))
    kept = sum(path.stat().st_size for path in (tmp_path / "kept").glob("??/*"))
    assert 0 < kept <= 2_000
    remote.close()


def test_what_is_published_does_not_say_where_the_text_came_from(
    corpus: Corpus, server: DataServer
) -> None:
    published = read_manifest(server.directory)
    assert published.source == ""
    assert published.digest == corpus.manifest.digest
