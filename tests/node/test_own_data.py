"""The data that a node trains on."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node import own_data
from node.data.builtin import BUILTIN_SHA256
from node.data.corpus import Corpus
from node.data.manifest import read_manifest
from node.data.publish import publish
from node.own_data import LIBRARY_CORPUS, open_corpus, reach_corpus
from node.settings import NodeSettings
from protocol.errors import DataError
from protocol.ids import RunId
from protocol.run_info import RunInfo
from tests.support.data_server import serving
from tests.support.tiny import tiny_corpus, tiny_spec

PATIENCE_S = 60


def info_of(**data: Any) -> RunInfo:
    spec = tiny_spec()
    changed = spec.model_copy(update={"data": spec.data.model_copy(update=data)})
    return RunInfo(changed, RunId("12" * 16), b"k" * 32)


def settings_of(place: Path, **changes: Any) -> NodeSettings:
    return NodeSettings("127.0.0.1:1", place, **changes)


def test_the_built_in_corpus_has_the_digest_that_it_has_everywhere(tmp_path: Path) -> None:
    corpus = open_corpus(settings_of(tmp_path), info_of(corpus="lockstep-2026"))
    assert corpus.manifest.digest.hex() == BUILTIN_SHA256
    assert corpus.manifest.tokens("train") > 5_000_000


def test_the_sources_of_this_python_are_the_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(own_data.BUILT_IN, LIBRARY_CORPUS, tiny_corpus)
    corpus = open_corpus(settings_of(tmp_path), info_of(corpus=LIBRARY_CORPUS))
    assert corpus.origin == str(tmp_path / LIBRARY_CORPUS)


def test_a_corpus_that_nobody_can_find_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'tiny', which is not built in.*--data-url"):
        open_corpus(settings_of(tmp_path), info_of())


def test_own_data_must_have_the_digest_of_the_run_file(tmp_path: Path) -> None:
    directory = tiny_corpus(tmp_path / "data")
    with pytest.raises(DataError, match="expected the data with manifest 0000"):
        open_corpus(settings_of(tmp_path, data=directory), info_of(manifest_sha256="0" * 64))


async def test_a_node_waits_for_the_server_of_its_data_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_data, "FIRST_PAUSE_MS", 10)
    directory = tiny_corpus(tmp_path / "data")
    publish(directory, str(tmp_path / "published"))
    with serving(tmp_path / "published") as server:
        server.status = 503
        info = info_of(url=server.url, manifest_sha256=read_manifest(directory).digest.hex())
        said: list[str] = []

        def say(phase: str) -> None:
            said.append(phase)
            server.status = 0

        async with asyncio.timeout(PATIENCE_S):
            corpus = await reach_corpus(settings_of(tmp_path), info, say)
        assert "waits for its data" in said[0]
        assert "status 503" in said[0]
        samples = await asyncio.to_thread(corpus.batch, 0, 5, 32, 0)
        assert np.array_equal(samples, Corpus.open(directory).batch(0, 5, 32, 0))
        corpus.close()
