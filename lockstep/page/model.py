"""The files of the published checkpoints, for everybody: slowly, because the run goes before them.

All downloads together take `BYTES_PER_S`. A download that broke off is taken up by a range.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from aiohttp import web

from protocol.border.checkpoint_files import is_checkpoint_file
from protocol.border.token_bucket import TokenBucket

BYTES_PER_S: Final = 500_000
"""Bytes a second of all downloads: 4 Mbit/s, of a home line of ten or more."""

PIECE_BYTES: Final = 64 * 1024
"""Bytes that are read at once."""

DOWNLOADS_MAX: Final = 16
"""Downloads at once; each has an open file."""

DOWNLOADS_PER_HOST: Final = 2
"""Downloads of one host at once: who reads slowly takes no place from others."""


class Model:
    """The checkpoints in a coordinator's folder, one folder for each."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._listed: tuple[str, tuple[tuple[str, int], ...]] = ("", ())
        self._rate = TokenBucket(BYTES_PER_S, BYTES_PER_S, 0)
        self._downloads = Counter[str]()

    @property
    def running(self) -> int:
        """Downloads under way."""
        return self._downloads.total()

    def files(self, name: str) -> Sequence[tuple[str, int]]:
        """Names and bytes of the files of a checkpoint; none where it is gone."""
        if self._listed[0] != name or not (self._directory / name).is_dir():
            self._listed = name, _listed(self._directory / name)
        return self._listed[1]

    async def answer(self, request: web.Request, host: str = "") -> web.StreamResponse:
        """The file of the newest checkpoint that a host asks for."""
        name, wanted = request.match_info["name"], request.match_info["file"]
        size = dict(self._listed[1]).get(wanted) if name == self._listed[0] else None
        if size is None:
            return web.Response(status=404, text="expected a file of the newest checkpoint\n")
        busy = self.running >= DOWNLOADS_MAX
        if busy or self._downloads[host] >= DOWNLOADS_PER_HOST:
            text = "expected fewer downloads at once; try again in a minute\n"
            return web.Response(status=503, text=text, headers={"Retry-After": "60"})
        try:
            first, end, _ = request.http_range.indices(size)
            file = (self._directory / name / wanted).open("rb")
        except ValueError:
            return web.Response(status=416, text="expected one range of bytes\n")
        except OSError:
            return web.Response(status=404, text="expected a file of the newest checkpoint\n")
        with file, self._download(host):
            return await self._send(request, file, size, slice(first, end))

    async def _send(
        self, request: web.Request, file: BinaryIO, size: int, part: slice
    ) -> web.StreamResponse:
        first, end = part.start, part.stop
        reply = web.StreamResponse(headers={"Accept-Ranges": "bytes"})
        reply.content_type = "application/octet-stream"
        reply.content_length = max(0, end - first)
        if "Range" in request.headers:
            found = f"{first}-{end - 1}" if first < end else "*"
            reply.set_status(206 if first < end else 416)
            reply.headers["Content-Range"] = f"bytes {found}/{size}"
        await reply.prepare(request)
        file.seek(first)
        while first < end and request.method == "GET":
            piece = await asyncio.to_thread(file.read, min(PIECE_BYTES, end - first))
            if not piece:
                break  # it was shortened on disk: the reader sees that it lacks bytes
            first += len(piece)
            await self._pace(len(piece))
            await reply.write(piece)
        return reply

    async def _pace(self, count: int) -> None:
        """Return when this number of bytes may leave."""
        now_ms = int(1000 * asyncio.get_running_loop().time())
        wait_ms = self._rate.wait_ms(count, now_ms)
        self._rate.charge(count, now_ms)
        await asyncio.sleep(wait_ms / 1000)

    @contextmanager
    def _download(self, host: str) -> Iterator[None]:
        self._downloads[host] += 1
        try:
            yield
        finally:
            self._downloads -= Counter([host])  # which forgets a host without any


def _listed(folder: Path) -> tuple[tuple[str, int], ...]:
    try:
        found = [each for each in folder.iterdir() if is_checkpoint_file(each.name)]
        return tuple(sorted((each.name, each.stat().st_size) for each in found))
    except OSError:
        return ()
