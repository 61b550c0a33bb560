"""The data that a node trains on: its owner's, the run's published ones, or a built-in corpus."""

import asyncio
import contextlib
from collections.abc import Callable

from node.data.builtin import BUILTIN_CORPUS, BUILTIN_SHA256
from node.data.corpus import Corpus
from node.data.prepare import prepare_builtin, prepare_library
from node.data.remote.reader import open_published
from node.data.remote.source import AwayError
from node.settings import NodeSettings
from node.system.backoff import Backoff
from node.system.downlink import Downlink
from protocol.errors import DataError
from protocol.limits import VALIDATION_TOKENS, VALIDATION_WINDOWS_MAX
from protocol.planner.feasibility import LIBRARY_CORPUS
from protocol.run_info import RunInfo
from protocol.runfile import DataSpec

BUILT_IN = {BUILTIN_CORPUS: prepare_builtin, LIBRARY_CORPUS: prepare_library}

FIRST_PAUSE_MS, LONGEST_PAUSE_MS = 1_000, 30_000
"""Pauses between two tries to begin while the server of the data is away."""


async def reach_corpus(
    settings: NodeSettings,
    info: RunInfo,
    say: Callable[[str], None],
    downlink: Downlink | None = None,
) -> Corpus:
    """The node's data, checked against the run file; waits for their server as long as it is away,
    and says so. Published data come no faster than `downlink` allows.

    Raises `DataError`, `SettingsError` and `StorageError`.
    """
    backoff = Backoff(FIRST_PAUSE_MS, LONGEST_PAUSE_MS)
    while True:
        try:
            return await asyncio.to_thread(open_corpus, settings, info, downlink)
        except AwayError as error:
            say(f"waits for its data: {error}")
            await asyncio.sleep(backoff.next() / 1000)


def open_corpus(settings: NodeSettings, info: RunInfo, downlink: Downlink | None = None) -> Corpus:
    """The node's data, checked against the run file. Prepares a built-in corpus on first use.

    Raises `AwayError` when their server does not answer.
    """
    spec = info.spec.data
    url = settings.data_url or spec.url
    if settings.data is not None:
        corpus = Corpus.open(settings.data, verify=True)
    elif url:
        corpus = _published(url, settings, spec, downlink)
    else:
        corpus = _built_in(settings, spec)
    expected, found = spec.manifest_sha256, corpus.manifest.digest.hex()
    if expected and found != expected:
        raise DataError(f"{corpus.origin}: expected the data with manifest {expected}, got {found}")
    corpus.samples(spec.sequence_length)
    return corpus


def _published(
    url: str, settings: NodeSettings, spec: DataSpec, downlink: Downlink | None
) -> Corpus:
    """The data at a URL, with the held-out samples at hand: no round waits for them later."""
    place = settings.directory / "ranges"
    wanted = url, spec.manifest_sha256, place, settings.data_cache
    corpus = open_published(*wanted, downlink=downlink)
    fitting = max(1, VALIDATION_TOKENS // spec.sequence_length)
    with contextlib.suppress(AwayError):
        corpus.validation(min(VALIDATION_WINDOWS_MAX, fitting), spec.sequence_length)
    return corpus


def _built_in(settings: NodeSettings, spec: DataSpec) -> Corpus:
    if spec.corpus not in BUILT_IN:
        raise DataError(
            f"the run trains on {spec.corpus!r}, which is not built in: prepare it with "
            "`lockstep data prepare` and name its directory with --data, or its URL with --data-url"
        )
    directory = (settings.corpora or settings.directory) / spec.corpus
    BUILT_IN[spec.corpus](directory)
    corpus = Corpus.open(directory, verify=True)
    if spec.corpus == BUILTIN_CORPUS and (got := corpus.manifest.digest.hex()) != BUILTIN_SHA256:
        raise DataError(
            f"{directory}: expected the data with manifest {BUILTIN_SHA256}, got {got}; remove "
            "that directory, and install Lockstep again if that does not help"
        )
    return corpus
