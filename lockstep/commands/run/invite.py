"""`lockstep invite`: one line that joins, ready to be handed on."""

import io
import time
from pathlib import Path
from typing import Any

import segno

from lockstep.commands.run.orders import moment
from lockstep.commands.run.place import at_work
from lockstep.console import messages, output
from lockstep.service.invitation import reachable
from lockstep.service.order_socket import Look, send
from lockstep.service.tokens import made_up, new_token
from protocol.border.join_link import is_loopback, parse_link
from protocol.errors import SettingsError
from protocol.words import quantity

NAME = "invitation"
"""The kind of tokens that invitations have."""


def invite(directory: Path | None, *, uses: int, expires_in_s: float | None) -> None:
    """Prints the line that joins the run, with a token of its own where the run wants one; as a QR
    code too on a terminal.

    Raises `SettingsError` where nobody elsewhere can use it.
    """
    place = at_work(directory)
    document: dict[str, Any] = send(place, Look())["document"]
    link = reachable(parse_link(document["link"]))
    mode = document["admission"]["mode"]
    if is_loopback(link.address):
        raise SettingsError(
            "only this machine can reach this run: start the coordinator with --listen "
            "0.0.0.0:50700, then invite"
        )
    said = "whoever has this line may join: the run admits everyone"
    if mode == "token":
        if link.plain:
            raise SettingsError(
                "a token would be shown to the network: start the coordinator without --plain-text"
            )
        expires_s = int(time.time() + expires_in_s) if expires_in_s else 0
        name = made_up(NAME)
        secret, _ = new_token(place, name, uses=uses, expires_s=expires_s)
        link = link.with_token(secret)
        end = f"until {moment(expires_s)}" if expires_s else "without an end"
        said = (
            f"for {quantity(uses, 'computer')}, {end}; `lockstep run token revoke {name}` ends it"
        )
    elif mode == "list":
        said = "each computer's id has to be allowed too: lockstep run allow ID"
    line = f"lockstep join '{link.text()}'"
    if messages.is_terminal:
        messages.print(picture(line))
    messages.print(said, soft_wrap=True)
    output.print(line, soft_wrap=True)


def picture(line: str) -> str:
    """A QR code of half blocks, light on dark, for a terminal."""
    written = io.StringIO()
    segno.make(line, error="l", micro=False).terminal(written, compact=True, border=2)
    return written.getvalue()
