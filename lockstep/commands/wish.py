"""`lockstep pause | resume | finish | stop | limit | me`: tells the node at work on this machine
the owner's wish.
"""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from lockstep.console import bytes_text, messages, output, write_json
from lockstep.exit_codes import UsageError
from lockstep.service.directory import owner_of
from lockstep.service.home import Home
from lockstep.volunteer.control import Wish, ask
from lockstep.volunteer.ledger import Work, read_all
from lockstep.volunteer.screen import render
from lockstep.volunteer.wishes import NodePlace
from protocol.errors import RemoteProtocolError, SettingsError, UnavailableError
from protocol.ids import RunId, short


def tell(
    command: str,
    place: NodePlace,
    seconds: float | None = None,
    limits: Mapping[str, str | int | bool] | None = None,
) -> None:
    """Tells the node the owner's wish, and prints its answer."""
    answer = _answer(Wish(command, seconds, dict(limits or {})), place)
    output.print(str(answer.get("said", "")), soft_wrap=True, markup=False)


def show(place: NodePlace, json_path: str | None) -> None:
    """Prints the node's status, or writes it as JSON; where no node works, what this computer has
    done so far.
    """
    try:
        status = _answer(Wish("me"), place).get("status", {})
        table, lines = render(status, hint=""), []
    except UnavailableError as error:
        work = read_all(place.path)
        if not work:
            raise
        messages.print(str(error), soft_wrap=True)
        status, table = {"work": msgspec.to_builtins(work)}, work_table(work)
        lines = pages(work)
    if json_path is not None:
        write_json(json_path, status)
    if json_path != "-":
        output.print(table)
        for line in lines:
            output.print(line, soft_wrap=True)


def work_table(work: Mapping[RunId, Work]) -> Table:
    """What this computer has done, by run, the newest last."""
    table = Table("run", "name", box=SIMPLE_HEAD, pad_edge=False, show_footer=len(work) > 1)
    whole = sum(work.values(), Work())
    sums = (
        ("rounds", f"{whole.trained:,}"),
        ("counted", f"{whole.counted:,}"),
        ("tokens", f"{whole.tokens:,}"),
        ("up", bytes_text(whole.up_bytes)),
        ("down", bytes_text(whole.down_bytes)),
    )
    table.columns[0].footer = "in all"
    for name, footer in sums:
        table.add_column(name, footer=footer, justify="right")
    table.add_column("last")
    for run_id, each in work.items():
        table.add_row(
            short(run_id),
            each.name,
            f"{each.trained:,}",
            f"{each.counted:,}",
            f"{each.tokens:,}",
            bytes_text(each.up_bytes),
            bytes_text(each.down_bytes),
            f"{datetime.fromtimestamp(each.last_s):%Y-%m-%d}",
        )
    return table


def pages(work: Mapping[RunId, Work]) -> list[str]:
    """Where everybody sees what this computer has done, a line for each run that has a page."""
    return [f"page of {each.name}: {each.page}" for each in work.values() if each.page]


def _answer(wish: Wish, place: NodePlace) -> dict[str, Any]:
    answer = ask(node_at_work(place), wish)
    if error := answer.get("error"):
        raise RemoteProtocolError(str(error))
    if refused := answer.get("refused"):
        raise SettingsError(str(refused))
    return answer


def node_at_work(place: NodePlace) -> Path:
    """The directory of the one node at work; `UnavailableError` for none, `UsageError` for
    several.
    """
    own = Home(place.path, place.only)
    found = own.at_work()
    if not found:
        raise UnavailableError(f"no node is at work in {own.path}; `lockstep join` starts one")
    if len(found) > 1:
        lines = ", ".join(f"{each} ({owner_of(each)})" for each in found)
        raise UsageError(f"several nodes are at work: name one with --directory: {lines}")
    return found[0]
