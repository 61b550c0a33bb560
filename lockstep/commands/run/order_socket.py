"""The operator's orders from another terminal, over a socket in the coordinator's directory.

{"type": "pause", "reason": "new disk"}   -->   {"said": "pause the run: new disk", ...}
{"type": "look"}                          -->   {"document": {...}}
"""

from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from coordinator.machine.operator import acts
from coordinator.machine.operator.acts import Act, Ordered
from lockstep.service import local_socket
from lockstep.service.local_socket import LocalSocket
from protocol.errors import RemoteProtocolError, SettingsError

SOCKET_NAME = "control"
"""Name of the socket in the directory of a coordinator at work."""


class Look(msgspec.Struct, frozen=True, tag="look", forbid_unknown_fields=True):
    """The operator asks how the run stands."""


Order: TypeAlias = Act | Look


class Desk(Protocol):
    """Whoever takes the operator's orders: `coordinator.desk.OperatorDesk`."""

    async def order(self, act: Act) -> Ordered:
        """Carries an act out; `SettingsError` for one that cannot be."""

    async def document(self) -> dict[str, Any]:
        """How the run stands."""


class OrderSocket(LocalSocket):
    """Serves one run's operator."""

    def __init__(self, directory: Path, desk: Desk) -> None:
        async def answer(line: bytes) -> dict[str, Any]:
            try:
                order = msgspec.json.decode(line, type=Order)
                if isinstance(order, Look):
                    return {"document": await desk.document()}
                event = await desk.order(order)
            except msgspec.DecodeError as error:
                return {"error": f"expected an order in JSON: {error}"}
            except SettingsError as error:
                return {"refused": str(error)}
            return {"said": acts.words(event.act), "digest": event.digest.hex()}

        super().__init__(directory / SOCKET_NAME, answer)


def send(directory: Path, order: Order) -> dict[str, Any]:
    """The answer of the coordinator at work in a directory.

    Raises `UnavailableError` when none is there, `SettingsError` when the order is out of bounds or
    the coordinator refuses it, `RemoteProtocolError` for an answer that is none.
    """
    try:
        msgspec.convert(msgspec.to_builtins(order), type=Order)
    except msgspec.ValidationError as error:
        expected, _, place = str(error).partition(" - at `$.")
        name = place.removesuffix("`") or "order"
        raise SettingsError(f"{name}: {expected[:1].lower()}{expected[1:]}") from None
    answer = local_socket.ask(directory / SOCKET_NAME, order, "no coordinator")
    if refused := answer.get("refused"):
        raise SettingsError(str(refused))
    if wrong := answer.get("error"):
        raise RemoteProtocolError(str(wrong))
    return answer
