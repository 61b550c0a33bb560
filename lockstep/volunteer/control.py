"""The wishes of a node's owner from another terminal, over a socket in the node's directory.

    {"command": "pause", "seconds": 3600}   -->   {"said": "paused for 60 min"}

One JSON line each way. The socket is the owner's alone (mode 0600): whoever can open it could also
send the process a signal.
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import msgspec

from node.system.files import storage_errors
from protocol.errors import RemoteProtocolError, UnavailableError

SOCKET_NAME = "control"
"""Name of the socket in the directory of a node at work."""

LINE_BYTES_MAX = 1 << 20
"""Longest line of a question or an answer: a status with hundreds of links is far shorter."""

ANSWER_S = 20.0
"""Longest wait for an answer: the event loop of a busy node turns within seconds."""

_PATH_BYTES_MAX = 100
"""Longest path of a socket, with room; the kernel's limit is 108."""


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """One wish of the owner."""

    command: str
    seconds: float | None = None
    """Length of a pause; None: until `resume`."""


class Obedient(Protocol):
    """The owner of the node's life."""

    def obey(self, wish: Wish) -> dict[str, Any]:
        """Fulfils a wish; returns the answer."""


class ControlSocket:
    """Serves one node's owner."""

    def __init__(self, directory: Path, node: Obedient) -> None:
        self._path, self._node = directory / SOCKET_NAME, node
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
        with contextlib.suppress(ConnectionError, ValueError, TimeoutError):
            async with asyncio.timeout(ANSWER_S):
                line = await reader.readline()
                try:
                    answer = self._node.obey(msgspec.json.decode(line, type=Wish))
                except msgspec.DecodeError as error:
                    answer = {"error": f"expected a wish in JSON: {error}"}
                writer.write(msgspec.json.encode(answer) + b"\n")
                await writer.drain()
        writer.close()


def ask(directory: Path, wish: Wish) -> dict[str, Any]:
    """The answer of the node at work in a directory.

    Raises `UnavailableError` when none is there, `RemoteProtocolError` for an answer that is none.
    """
    path = directory / SOCKET_NAME
    try:
        with socket.socket(socket.AF_UNIX) as line, _short(path) as short:
            line.settimeout(ANSWER_S)
            line.connect(short)
            line.sendall(msgspec.json.encode(wish) + b"\n")
            with line.makefile("rb") as reader:
                reply = reader.readline(LINE_BYTES_MAX)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"no node answers in {directory}: {reason}") from None
    try:
        return msgspec.json.decode(reply, type=dict[str, Any])
    except msgspec.DecodeError as error:
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
