"""Questions to a process on this machine, over a socket in its directory.

One line each way, of JSON. The socket is its owner's alone (mode 0600): whoever can open it could
also send the process a signal.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from node.system.files import storage_errors
from protocol.codec.decoding import UNREADABLE
from protocol.errors import RemoteProtocolError, UnavailableError

LINE_BYTES_MAX = 1 << 22
"""Longest line of a question or an answer: the members of the largest run, each with its reason."""

ANSWER_S = 20.0
"""Longest wait for an answer: the event loop of a busy process turns within seconds."""

_PATH_BYTES_MAX = 100
"""Longest path of a socket, with room; the kernel's limit is 108."""

Answer = Callable[[bytes], Awaitable[dict[str, Any]]]
"""Function that answers a line."""


class LocalSocket:
    """Serves the questions of this machine's owner at a path."""

    def __init__(self, path: Path, answer: Answer) -> None:
        self._path, self._make_answer = path, answer
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listens, in place of a killed process's socket."""
        if not hasattr(socket, "AF_UNIX"):
            return
        listening = socket.socket(socket.AF_UNIX)
        with storage_errors(self._path), _short(self._path) as path:
            self._path.unlink(missing_ok=True)
            before = os.umask(0o177)
            try:
                listening.bind(path)
            finally:
                os.umask(before)
        self._server = await asyncio.start_unix_server(
            self._answer, sock=listening, limit=LINE_BYTES_MAX
        )

    async def stop(self) -> None:
        """Closes and removes the socket."""
        if self._server:
            self._server.close()
            self._server = None
            self._path.unlink(missing_ok=True)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled: the process ends, and the answer that this waited for does not come.
        ends = ConnectionError, ValueError, TimeoutError, asyncio.CancelledError
        with contextlib.suppress(*ends):
            async with asyncio.timeout(ANSWER_S):
                answer = await self._make_answer(await reader.readline())
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        writer.close()


def ask(path: Path, question: msgspec.Struct, who: str, cure: str) -> dict[str, Any]:
    """The answer of the process that serves the socket at `path`; `who`, such as "no node", and
    the cure are for the error.

    Raises `UnavailableError` when none is there or it ends, `RemoteProtocolError` for an answer
    that is none.
    """
    try:
        with socket.socket(socket.AF_UNIX) as line, _short(path) as short:
            line.settimeout(ANSWER_S)
            line.connect(short)
            line.sendall(msgspec.json.encode(question) + b"\n")
            with line.makefile("rb") as reader:
                reply = reader.readline(LINE_BYTES_MAX)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"{who} answers in {path.parent} ({reason}): {cure}") from None
    if not reply:
        raise UnavailableError(
            f"the process in {path.parent} ended before it answered: its last line says why"
        )
    try:
        return msgspec.json.decode(reply, type=dict[str, Any])
    except UNREADABLE as error:
        raise RemoteProtocolError(f"{path}: expected an answer in JSON, got {error}") from None


@contextlib.contextmanager
def _short(path: Path) -> Iterator[str]:
    """The path, or another name of it that is short enough for a socket (Linux)."""
    if len(os.fsencode(path)) <= _PATH_BYTES_MAX:
        yield str(path)
        return
    handle = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{handle}/{path.name}"
    finally:
        os.close(handle)
