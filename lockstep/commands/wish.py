"""`lockstep pause | resume | finish | stop | limit | me`: tells the node at work on this machine
the owner's wish.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.console import output, write_json
from lockstep.exit_codes import UsageError
from lockstep.service.directory import owner_of
from lockstep.service.home import Home
from lockstep.volunteer.control import Wish, ask
from lockstep.volunteer.screen import render
from protocol.errors import RemoteProtocolError, SettingsError, UnavailableError


def tell(
    command: str,
    home: Path,
    directory: Path | None,
    seconds: float | None = None,
    limits: Mapping[str, str | int | bool] | None = None,
) -> None:
    """Tells the node the owner's wish, and prints its answer."""
    answer = _answer(Wish(command, seconds, dict(limits or {})), home, directory)
    output.print(str(answer.get("said", "")), soft_wrap=True, markup=False)


def show(home: Path, directory: Path | None, json_path: str | None) -> None:
    """Prints the node's status, or writes it as JSON."""
    status = _answer(Wish("me"), home, directory).get("status", {})
    if json_path is not None:
        write_json(json_path, status)
    if json_path != "-":
        output.print(render(status, hint=""))


def _answer(wish: Wish, home: Path, directory: Path | None) -> dict[str, Any]:
    answer = ask(node_at_work(home, directory), wish)
    if error := answer.get("error"):
        raise RemoteProtocolError(str(error))
    if refused := answer.get("refused"):
        raise SettingsError(str(refused))
    return answer


def node_at_work(home: Path, directory: Path | None) -> Path:
    """The directory of the one node at work; `UnavailableError` for none, `UsageError` for
    several.
    """
    own = Home((directory or home).expanduser(), only=directory is not None)
    found = own.at_work()
    if not found:
        raise UnavailableError(f"no node is at work in {own.path}; `lockstep join` starts one")
    if len(found) > 1:
        lines = ", ".join(f"{place} ({owner_of(place)})" for place in found)
        raise UsageError(f"several nodes are at work: name one with --directory: {lines}")
    return found[0]
