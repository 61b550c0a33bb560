"""Bytes of the files of a published corpus, at any URL that fsspec knows.

Nothing that a server says is believed, and no more is read than was asked for. So http has a path
of its own here, on fsspec's session: its file objects read an answer of any length.
"""

import time
from typing import Any, Protocol

from node.system.clock import own_clock_ms
from node.system.downlink import Downlink
from node.system.urls import file_system
from protocol.border.text import clean
from protocol.errors import DataError, UnavailableError

ANSWER_S = 30
"""Longest wait for a range, and for the next bytes of a longer file."""

FILE_S = 1800
"""Longest time that a whole file may take: a manifest over a slow link; with a limit on the
download a range, too."""

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


class HttpSource:
    """Files of a web server."""

    def __init__(self, url: str, system: Any, downlink: Downlink | None = None) -> None:
        self.url, self._system = url, system
        self._downlink = downlink or Downlink(0, own_clock_ms)

    def read(self, name: str, start: int, stop: int) -> bytes:
        headers = {"Range": f"bytes={start}-{stop - 1}"}
        status, body = self._get(name, headers, stop - start, ANSWER_S)
        if status == 200 and (start > 0 or len(body) != stop):
            raise DataError(f"{self.url}: expected a server of ranges: {NO_RANGES}")
        return body

    def whole(self, name: str, bytes_max: int) -> bytes:
        _, body = self._get(name, {}, bytes_max, FILE_S)
        return _bounded(body, bytes_max, f"{self.url}/{name}")

    def _get(
        self, name: str, headers: dict[str, str], bytes_max: int, limit_s: float
    ) -> tuple[int, bytes]:
        """Status and body, of which at most one byte more than `bytes_max` is read."""
        import aiohttp
        from fsspec.asyn import sync

        async def get() -> tuple[int, bytes]:
            session, body = await self._system.set_session(), bytearray()
            timeout = aiohttp.ClientTimeout(total=total_s, sock_read=ANSWER_S)
            wanted = {"Accept-Encoding": "identity", **headers}
            async with session.get(url, headers=wanted, timeout=timeout) as answer:
                while answer.status < 300 and len(body) <= bytes_max:
                    piece = await answer.content.read(bytes_max + 1 - len(body))
                    if not piece:
                        break
                    body += piece
                    await self._downlink.pace(len(piece), _taken)
                return answer.status, bytes(body)

        url = f"{self.url}/{name}"
        total_s = FILE_S if self._downlink.limited else limit_s
        try:
            with self._downlink.turn():
                status, body = sync(self._system.loop, get, timeout=total_s + ANSWER_S)
        except (aiohttp.ClientError, OSError, ValueError) as error:  # OSError: timeouts, too
            reason = clean(str(error)) or type(error).__name__
            raise AwayError(f"{url} does not answer: {reason}") from None
        if status >= 500 or status in _RETRIED:
            raise AwayError(f"{url} answers with status {status}")
        if status == 416:  # the file ends before the range
            return status, b""
        if status not in (200, 206):
            raise MissingError(f"{url}: expected the data of the run, got status {status}")
        return status, body


class FileSource:
    """Files of any other file system of fsspec, this machine's too."""

    def __init__(self, url: str, system: Any, root: str, downlink: Downlink | None = None) -> None:
        self.url, self._system, self._root = url, system, root
        self._downlink = downlink or Downlink(0, own_clock_ms)

    def read(self, name: str, start: int, stop: int) -> bytes:
        return self._read(name, start, stop - start)

    def whole(self, name: str, bytes_max: int) -> bytes:
        return _bounded(self._read(name, 0, bytes_max + 1), bytes_max, f"{self.url}/{name}")

    def _read(self, name: str, start: int, count: int) -> bytes:
        path = f"{self._root}/{name}"
        try:
            with self._downlink.turn():
                with self._system.open(path, "rb", cache_type="none") as file:
                    file.seek(start)
                    blob = bytes(file.read(count))
                time.sleep(self._downlink.charge(len(blob)))
            return blob
        except (FileNotFoundError, PermissionError, NotADirectoryError) as error:
            raise MissingError(
                f"{self.url}/{name}: expected the data of the run: {clean(str(error))}"
            ) from None
        except Exception as error:  # each backend raises errors of its own
            reason = f"{type(error).__name__}: {clean(str(error))}"
            if type(error).__name__ in _WITHOUT_CREDENTIALS:
                raise MissingError(f"{self.url}: {NO_CREDENTIALS}: {reason}") from None
            raise AwayError(f"{self.url}/{name} cannot be read: {reason}") from None


def _taken(_: int) -> None:
    """Do nothing: a web server is held back because its bytes are not read."""


def _bounded(body: bytes, bytes_max: int, place: str) -> bytes:
    if len(body) > bytes_max:
        raise DataError(f"{place}: expected at most {bytes_max:,} bytes, got more")
    return body
