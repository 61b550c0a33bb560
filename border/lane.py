"""The way from a gate to gRPC: a local socket for each connection, which nobody else can open."""

import asyncio
import itertools
import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from protocol.errors import StorageError
from protocol.shortage import shortages

_Protocol = TypeVar("_Protocol", bound=asyncio.BaseProtocol)

LANE_NAME = "lane"

PLACE_CHARACTERS_MAX = 70
"""Length of the path of temporary files; that of a socket is 104 on macOS."""

UNIX_SOCKETS = hasattr(socket, "AF_UNIX")
"""Whether the system has local sockets; Windows has none for Python."""


class Lane:
    """Sockets in a directory of its own, or of loopback where there are no local ones (Windows)."""

    def __init__(self) -> None:
        self._directory: Path | None = None
        self._names, self._port = itertools.count(), 0
        self.address = "127.0.0.1:0"
        """Address for gRPC to listen at."""
        if UNIX_SOCKETS:
            self._directory = _own_directory()
            self.address = f"unix:{self._directory / LANE_NAME}"

    def bound(self, port: int) -> None:
        """GRPC listens, at this port where it is one."""
        self._port = port

    async def connect(self, protocol: Callable[[], _Protocol]) -> tuple[str, _Protocol]:
        """Another connection to gRPC, and how gRPC names this end; `OSError`."""
        loop = asyncio.get_running_loop()
        if self._directory is None:
            transport, inside = await loop.create_connection(protocol, "127.0.0.1", self._port)
            host, port = transport.get_extra_info("sockname")
            return f"ipv4:{host}:{port}", inside
        own = self._directory / str(next(self._names))
        local = socket.socket(socket.AF_UNIX)
        try:
            local.setblocking(False)
            local.bind(str(own))
            local.connect(str(self._directory / LANE_NAME))
            _, inside = await loop.create_unix_connection(protocol, sock=local)
        except BaseException:
            local.close()
            raise
        finally:
            own.unlink(missing_ok=True)  # gRPC asks for its name and needs no file
        return f"unix:{own}", inside

    def close(self) -> None:
        """Removes the directory."""
        if self._directory:
            shutil.rmtree(self._directory, ignore_errors=True)


def _own_directory() -> Path:
    """A directory of this user alone; `ShortageError`, `StorageError` where there can be none."""
    place = tempfile.gettempdir()
    if len(place) > PLACE_CHARACTERS_MAX:
        raise StorageError(f"{place}: expected a shorter path for local sockets; set TMPDIR")
    try:
        with shortages(f"make a directory in {place}"):
            return Path(tempfile.mkdtemp(prefix="lockstep-"))
    except OSError as error:
        raise StorageError(
            f"{place}: cannot make a directory for local sockets: {error.strerror}; set TMPDIR to "
            "one that can be written"
        ) from None
