"""The wishes of a node's owner from another terminal, over a socket in the node's directory
(`lockstep.service.local_socket`).

    {"command": "pause", "seconds": 3600}   -->   {"said": "paused for 60 min"}
"""

from pathlib import Path
from typing import Any, Protocol

import msgspec

from lockstep.service import local_socket
from lockstep.service.local_socket import LocalSocket
from protocol.codec.decoding import UNREADABLE

SOCKET_NAME = "control"
"""Name of the socket in the directory of a node at work."""


class Wish(msgspec.Struct, forbid_unknown_fields=True):
    """One wish of the owner."""

    command: str
    seconds: float | None = None
    """Length of a pause; None: until `resume`."""
    limits: dict[str, str | int | bool] = {}
    """Limits to change, by name."""


class Obedient(Protocol):
    """The owner of the node's life."""

    def obey(self, wish: Wish) -> dict[str, Any]:
        """Fulfils a wish; returns the answer."""


class ControlSocket(LocalSocket):
    """Serves one node's owner."""

    def __init__(self, directory: Path, node: Obedient) -> None:
        async def answer(line: bytes) -> dict[str, Any]:
            try:
                return node.obey(msgspec.json.decode(line, type=Wish))
            except UNREADABLE as error:
                return {"error": f"expected a wish in JSON: {error}"}

        super().__init__(directory / SOCKET_NAME, answer)


def ask(directory: Path, wish: Wish) -> dict[str, Any]:
    """The answer of the node at work in a directory.

    Raises `UnavailableError` when none is there, `RemoteProtocolError` for an answer that is none.
    """
    cure = "name the directory of one at work, or start it with `lockstep join`"
    return local_socket.ask(directory / SOCKET_NAME, wish, "no node", cure)
