"""The operator's orders from another terminal, over a socket in the coordinator's directory.

{"type": "pause", "reason": "new disk"}   -->   {"said": "pause the run: new disk", ...}
{"type": "look"}                          -->   {"document": {...}}
"""

import re
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import msgspec

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act, Ordered
from lockstep.service import local_socket
from lockstep.service.local_socket import LocalSocket
from protocol.codec.decoding import UNREADABLE
from protocol.errors import RemoteProtocolError, SettingsError

_WORDS = (
    (r"Expected `str` of length <= (\d+)", "expected at most {} characters"),
    (r"Expected `str` of length >= 1", "expected a text, not an empty one"),
    (
        r"Expected `str` matching regex '\^\[A-Za-z0-9\._-\]\{1,(\d+)\}\$'",
        "expected 1 to {} letters, digits, '.', '_' and '-'",
    ),
    (r"Expected `(?:int|float)` <= (\S+)", "expected at most {}"),
    (r"Expected `(?:int|float)` >= (\S+)", "expected at least {}"),
    (r"Expected `(?:int|float)` > (\S+)", "expected more than {}"),
)
"""Forms of msgspec's messages about bounds, and the words for them."""

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
            except UNREADABLE as error:
                return {"error": f"expected an order in JSON: {error}"}
            except SettingsError as error:
                return {"refused": str(error)}
            return {"said": acts.words(event.act), "digest": event.digest.hex()}

        super().__init__(directory / SOCKET_NAME, answer)


FOUND_CHARACTERS = 40
"""Characters of a wrong value that an error shows."""


def _require_bounds(order: Order) -> None:
    """Raises `SettingsError` for a value out of its bounds, in words for a person."""
    fields = msgspec.to_builtins(order)
    try:
        msgspec.convert(fields, type=Order)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at `$.")
        name = place.removesuffix("`")
        found = str(fields.get(name, order))
        many = f"{found[:FOUND_CHARACTERS]!r}... ({len(found):,} characters)"
        shown = many if len(found) > FOUND_CHARACTERS else repr(fields.get(name, found))
        name = {"away_s": "seconds of --for"}.get(name, name or "order")
        raise SettingsError(f"{name}: {_in_words(said)}, found {shown}") from None


def _in_words(said: str) -> str:
    """What msgspec says of a value, for people without its types."""
    for pattern, words in _WORDS:
        if found := re.fullmatch(pattern, said):
            return words.format(*found.groups())
    return said[:1].lower() + said[1:]


def send(directory: Path, order: Order) -> dict[str, Any]:
    """The answer of the coordinator at work in a directory.

    Raises `UnavailableError` when none is there, `SettingsError` when the order is out of bounds or
    the coordinator refuses it, `RemoteProtocolError` for an answer that is none.
    """
    _require_bounds(order)
    answer = local_socket.ask(
        directory / SOCKET_NAME,
        order,
        "no coordinator",
        "name the directory of one at work with --directory, or start it",
    )
    if refused := answer.get("refused"):
        raise SettingsError(str(refused))
    if wrong := answer.get("error"):
        raise RemoteProtocolError(str(wrong))
    return answer
