"""The reader of everything that a node fetches by a URL: a run's data, and its genesis.

Nothing that a server says is believed. http has a path of its own here, on fsspec's session, whose
file objects read an answer of any length:

    bytes     no more than were asked for, never compressed, and of the place that was asked for
    time      `ANSWER_S`, of which each byte gives back a part: `SLOWEST` bytes a second are enough
    a file    is taken up where a connection broke, and refused as soon as it is said to be too long

Other backends are read piece by piece; their servers are those of this machine's environment and
not a run file's choice. The reader does not judge what it brings. Each caller compares a digest of
the run file before it believes, or parses, anything: so http without TLS is permitted.
"""

import asyncio
import time
from collections.abc import Awaitable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TypeVar

from node.system.clock import own_clock_ms
from node.system.downlink import Downlink
from node.system.files import storage_errors
from node.system.urls import file_system
from protocol.border.text import clean
from protocol.errors import DataError, LockstepError, UnavailableError

ANSWER_S = 30
"""Longest wait for a server, from the request on or since its bytes last came fast enough."""

SLOWEST = 4096
"""Bytes a second that a server must give in the long run: a thin line that eight fetches share."""

PIECE_BYTES = 4 * 1024**2
"""Bytes that are in memory at once of a file that goes to disk."""

_Result = TypeVar("_Result")

_RETRIED = {408, 425, 429}
"""Statuses below 500 that say "later"."""

NO_RANGES = (
    "it answers a request for a range with the whole file; serve the data from a server that knows "
    "ranges, such as nginx, Caddy or a bucket (python -m http.server does not)"
)


NO_CREDENTIALS = (
    "expected credentials in the environment (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY), or "
    "FSSPEC_S3_ANON=true for a public bucket, found none"
)

_WITHOUT_CREDENTIALS = {"NoCredentialsError", "PartialCredentialsError"}
"""Errors of botocore, by name: without s3fs there is no botocore."""


class AwayError(UnavailableError):
    """The server of the data does not answer; later it may."""


class MissingError(DataError):
    """The server answers, and says that the file is not there or not for us."""


class Source(Protocol):
    """Files at a URL. The methods block; they raise `AwayError`, `MissingError`, and `DataError`
    for a server that cannot be used.
    """

    url: str

    def read(self, name: str, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of a file: what the server gave for them, one byte too many at
        most.
        """

    def whole(self, name: str, bytes_max: int) -> bytes:
        """A whole file; `DataError` if it is longer than `bytes_max`."""

    def save(self, name: str, file: BinaryIO, bytes_max: int) -> None:
        """Write a whole file, of any size, to an empty one; `DataError` if it is longer than
        `bytes_max`, `StorageError` for this machine's disk.
        """


def source_of(url: str, downlink: Downlink | None = None) -> Source:
    """The source of a URL, read no faster than `downlink` allows. Backends other than http give a
    range at once, and then wait until it is paid; files of this machine cost nothing.

    `SettingsError` for a URL that no installed backend of fsspec knows.
    """
    import fsspec.implementations.http
    import fsspec.implementations.local

    system, root = file_system(url, "data: expected a URL that fsspec can read here")
    if isinstance(system, fsspec.implementations.http.HTTPFileSystem):
        return HttpSource(url.rstrip("/"), system, downlink)
    is_local = isinstance(system, fsspec.implementations.local.LocalFileSystem)
    return FileSource(url.rstrip("/"), system, root.rstrip("/"), None if is_local else downlink)


class SourcePatience:
    """The time that a server may still take. Each byte gives back what `SLOWEST` of them a second
    take, so that a slow server is waited for and one that drips is not.
    """

    def __init__(self) -> None:
        self._left_s = float(ANSWER_S)

    async def wait(self, work: Awaitable[_Result]) -> _Result:
        """The result of `work`; `TimeoutError` when the time is over."""
        began_s = time.monotonic()
        try:
            async with asyncio.timeout(self._left_s):
                return await work
        finally:
            self._left_s -= time.monotonic() - began_s

    def came(self, count: int) -> None:
        """`count` bytes have come."""
        self._left_s = min(ANSWER_S, self._left_s + count / SLOWEST)


class HttpSource:
    """Files of a web server."""

    def __init__(self, url: str, system: Any, downlink: Downlink | None = None) -> None:
        self.url, self._system = url, system
        self._downlink = downlink or Downlink(0, own_clock_ms)

    def read(self, name: str, start: int, stop: int) -> bytes:
        body = BytesIO()
        status = self._get(_Wanted(f"{self.url}/{name}", start, stop), body, stop - start + 1)
        if status == 200 and (start > 0 or body.tell() != stop):
            raise DataError(f"{self.url}: expected a server of ranges: {NO_RANGES}")
        return body.getvalue()

    def whole(self, name: str, bytes_max: int) -> bytes:
        body = BytesIO()
        self.save(name, body, bytes_max)
        return body.getvalue()

    def save(self, name: str, file: BinaryIO, bytes_max: int) -> None:
        patience = SourcePatience()
        while True:
            had = file.tell()
            wanted = _Wanted(f"{self.url}/{name}", had, announced_max=bytes_max, patience=patience)
            try:
                status = self._get(wanted, file, bytes_max - had + 1)
            except AwayError:
                if file.tell() == had:
                    raise
                continue
            if had and status == 200:
                raise AwayError(
                    f"{wanted.url}: the connection broke after {had:,} bytes, and the server knows "
                    "no ranges by which to go on"
                )
            return _require_bounded(file.tell(), bytes_max, wanted.url)

    def _get(self, wanted: "_Wanted", file: BinaryIO, bytes_max: int) -> int:
        """Append the answer to `file`, at most `bytes_max` bytes of it; returns the status."""
        import aiohttp
        from fsspec.asyn import sync

        try:
            with self._downlink.turn():
                status: int = sync(self._system.loop, self._answer, wanted, file, bytes_max)
        except TimeoutError:
            raise AwayError(
                f"{wanted.url} does not answer: expected {SLOWEST:,} bytes a second, "
                f"got less for more than {ANSWER_S} s"
            ) from None
        except aiohttp.TooManyRedirects:
            raise AwayError(f"{wanted.url} does not answer: it redirects without an end") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            reason = clean(str(error)) or type(error).__name__
            raise AwayError(f"{wanted.url} does not answer: {reason}") from None
        if status >= 500 or status in _RETRIED:
            raise AwayError(f"{wanted.url} answers with status {status}")
        if status not in (200, 206, 416):  # 416: the file ends before the range
            raise MissingError(f"{wanted.url}: expected a file of the run, got status {status}")
        return status

    async def _answer(self, wanted: "_Wanted", file: BinaryIO, bytes_max: int) -> int:
        import aiohttp

        session, patience = await self._system.set_session(), wanted.patience
        asked = session.get(
            wanted.url,
            headers=wanted.headers,
            timeout=aiohttp.ClientTimeout(total=None),
            auto_decompress=False,
        )
        async with await patience.wait(asked) as answer:
            status: int = answer.status
            if status not in (200, 206):
                return status
            if status == 200 and wanted.start:
                return status
            wanted.require_fits(status, answer.headers)
            while bytes_max > 0:
                piece = await patience.wait(answer.content.read(min(bytes_max, PIECE_BYTES)))
                if not piece:
                    break
                _append(file, piece)
                bytes_max -= len(piece)
                patience.came(len(piece))
                await self._downlink.pace(len(piece), _taken)
            return status


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A range of a file, or all of it from `start` on where `stop` is 0."""

    url: str
    start: int = 0
    stop: int = 0
    announced_max: int = 0
    """Longest whole file; 0: the answer's length is not looked at."""

    patience: SourcePatience = field(default_factory=SourcePatience)

    @property
    def headers(self) -> dict[str, str]:
        """Those of the request."""
        last = str(self.stop - 1) if self.stop else ""
        ranges = {"Range": f"bytes={self.start}-{last}"} if self.start or self.stop else {}
        return {"Accept-Encoding": "identity", **ranges}

    def require_fits(self, status: int, headers: Mapping[str, str]) -> None:
        """`DataError` unless the headers of an answer are about what was asked for."""
        if (encoding := headers.get("Content-Encoding", "identity").lower()) != "identity":
            raise DataError(
                f"{self.url}: expected the bytes of the file, got them as {clean(encoding)}; the "
                "server must not compress them"
            )
        place = headers.get("Content-Range", "")
        if status == 206 and place and not place.startswith(f"bytes {self.start}-"):
            raise DataError(f"{self.url}: expected bytes from {self.start}, got {clean(place)}")
        length = headers.get("Content-Length", "")
        if self.announced_max and length.isdecimal():
            _require_bounded(self.start + int(length[:20]), self.announced_max, self.url)


class FileSource:
    """Files of any other file system of fsspec, this machine's too."""

    def __init__(self, url: str, system: Any, root: str, downlink: Downlink | None = None) -> None:
        self.url, self._system, self._root = url, system, root
        self._downlink = downlink or Downlink(0, own_clock_ms)

    def read(self, name: str, start: int, stop: int) -> bytes:
        with self._opened(name) as file:
            file.seek(start)
            return self._piece(file, stop - start)

    def whole(self, name: str, bytes_max: int) -> bytes:
        body = BytesIO()
        self.save(name, body, bytes_max)
        return body.getvalue()

    def save(self, name: str, file: BinaryIO, bytes_max: int) -> None:
        with self._opened(name) as remote:
            while piece := self._piece(remote, PIECE_BYTES):
                _require_bounded(file.tell() + len(piece), bytes_max, f"{self.url}/{name}")
                _append(file, piece)

    def _piece(self, file: Any, count: int) -> bytes:
        with self._downlink.turn():
            blob = bytes(file.read(count))
            time.sleep(self._downlink.charge(len(blob)))
        return blob

    @contextmanager
    def _opened(self, name: str) -> Iterator[Any]:
        try:
            with self._system.open(f"{self._root}/{name}", "rb", cache_type="none") as file:
                yield file
        except LockstepError:
            raise
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise MissingError(
                f"{self.url}/{name}: expected a file of the run: {clean(str(error))}"
            ) from None
        except Exception as error:  # each backend raises errors of its own
            reason = f"{type(error).__name__}: {clean(str(error))}"
            if type(error).__name__ in _WITHOUT_CREDENTIALS:
                raise MissingError(f"{self.url}: {NO_CREDENTIALS}: {reason}") from None
            raise AwayError(f"{self.url}/{name} cannot be read: {reason}") from None


def _taken(_: int) -> None:
    """Do nothing: a web server is held back because its bytes are not read."""


def _append(file: BinaryIO, piece: bytes) -> None:
    with storage_errors(Path(str(getattr(file, "name", "")))):
        file.write(piece)


def _require_bounded(count: int, bytes_max: int, place: str) -> None:
    if count > bytes_max:
        raise DataError(f"{place}: expected at most {bytes_max:,} bytes, got more")
