"""`lockstep run pause | resume | finish | evict | ban | ...`: one order each, and `members`."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from rich.box import SIMPLE_HEAD
from rich.table import Table

from coordinator.machine.events import acts
from coordinator.machine.events.acts import Act
from coordinator.process import CHECKPOINTS_NAME
from lockstep.commands.run.place import PREFIX_MIN, at_work, key_of, target_of
from lockstep.console import bytes_text, messages, output, write_json
from lockstep.page.export import export
from lockstep.service.invitation import invitation
from lockstep.service.order_socket import Look, send
from lockstep.service.serve import NOTE_NAME, read_note
from lockstep.service.tokens import made_up, new_token
from lockstep.volunteer.consent import agrees, somebody_is_there
from protocol.border.join_link import parse_link
from protocol.border.text import clean_document
from protocol.errors import SettingsError, UnavailableError
from protocol.ids import short
from protocol.words import quantity

BANS_SHOWN = 5
"""Bans that the answer to an order about another one shows."""


def tell(directory: Path | None, act: Act) -> None:
    """Sends one order, and prints that it was done."""
    answer = send(at_work(directory), act)
    output.print(f"done: {answer.get('said')}", soft_wrap=True)


def tell_if_sure(
    directory: Path | None,
    act: Act,
    *,
    yes: bool,
    terminal: bool | None = None,
    answer: Callable[[str], str] = input,
) -> None:
    """Sends an order that hits others, once the operator has said yes on a terminal."""
    if terminal is None:
        terminal = somebody_is_there()
    if terminal and not yes and not agrees(f"{acts.words(act)}?", answer):
        messages.print("nothing was done")
        return
    tell(directory, act)


def look(directory: Path | None) -> dict[str, Any]:
    """How the run stands, for its operator; texts of strangers in it are cleaned."""
    document: dict[str, Any] = send(at_work(directory), Look())["document"]
    return dict(clean_document(document))


def key(directory: Path | None, text: str) -> str:
    """The key of a node that a person named."""
    return text if acts.is_key(text) else key_of(text, look(directory)["members"])


def auditor_key(text: str) -> str:
    """The key of an auditor, which is no member: all of it."""
    word = text.strip().lower()
    if not acts.is_key(word):
        raise SettingsError(
            f"expected the id of an auditor, 32 hexadecimal characters, found {text[:40]!r}: "
            "`lockstep auditor` prints it when it starts"
        )
    return word


def auditors(directory: Path | None) -> None:
    """Prints the auditors that are named."""
    named = look(directory)["auditors"]
    output.print("\n".join(named) if named else "no auditor is named: members vote")


def target(directory: Path | None, text: str) -> str:
    """The key or host that a person named."""
    return text if acts.is_key(text) else target_of(text, look(directory)["members"])


def banned(directory: Path | None, text: str) -> str:
    """The banned key or host that a person named; keys by their first characters too."""
    bans = look(directory)["bans"]
    try:
        return target_of(text, [{"peer_id": ban["target"]} for ban in bans])
    except SettingsError:
        raise SettingsError(no_ban(text, bans)) from None


def no_ban(text: str, bans: list[Mapping[str, Any]]) -> str:
    """Why nothing is to be lifted, with the newest bans, in words."""
    newest = [f"{each['target']} ({each['reason'] or 'no reason'})" for each in bans[-BANS_SHOWN:]]
    which = f"the newest of {quantity(len(bans), 'ban')}: {', '.join(newest)}" if bans else "none"
    return (
        f"expected the first {PREFIX_MIN} or more characters of a banned key, or a banned IP "
        f"address, found {text[:40]!r}; banned: {which}"
    )


def rule(mode: str) -> Act:
    """The order to admit by a rule; `SettingsError` for one that there is not."""
    for each in get_args(acts.Mode):
        if each == mode:
            return acts.Admit(each)
    raise SettingsError(f"expected open, token or list, found {mode[:40]!r}")


def members(directory: Path | None, json_path: str | None) -> None:
    """Prints the members and whom the run refuses, or writes them as JSON."""
    document = look(directory)
    if json_path is not None:
        write_json(json_path, document)
    if json_path != "-":
        output.print(_members(document["members"]) if document["members"] else "no members")
        for line in _refused(document):
            output.print(line, soft_wrap=True)


def create_token(
    directory: Path | None, name: str, *, uses: int, expires_in_s: float | None, vouches: bool
) -> None:
    """Makes a token and prints it, with the line that joins by it; nothing keeps it but the
    operator.
    """
    expires_s = int(time.time() + expires_in_s) if expires_in_s else 0
    place, name = at_work(directory), name or made_up("token")
    secret, said = new_token(place, name, uses=uses, expires_s=expires_s, vouches=vouches)
    end = f"until {moment(expires_s)}" if expires_s else "without an end"
    messages.print(f"done: {said}, {end}", soft_wrap=True)
    link = parse_link(send(place, Look())["document"]["link"])
    if link.plain:
        messages.print("nobody elsewhere can show a token to a coordinator with --plain-text")
    else:
        messages.print(invitation(link.with_token(secret)), soft_wrap=True)
    output.print(secret, soft_wrap=True)


def write_page(directory: Path | None, folder: Path) -> None:
    """Writes the public page of the coordinator at work here."""
    place = at_work(directory)
    note = read_note(place / NOTE_NAME)
    if note is None:
        raise UnavailableError(f"{place}: expected a coordinator at work, found none")
    size = export(str(note["admin"]), place / CHECKPOINTS_NAME, folder)
    output.print(f"wrote the page of the run to {folder}: {bytes_text(size)}", soft_wrap=True)


def tokens(directory: Path | None, json_path: str | None) -> None:
    """Prints the tokens, without their secrets, or writes them as JSON."""
    admission = look(directory)["admission"]
    if json_path is not None:
        write_json(json_path, admission)
    if json_path == "-":
        return
    table = Table("token", "used", "expires", "vouches", box=SIMPLE_HEAD, pad_edge=False)
    for token in admission["tokens"]:
        table.add_row(
            token["name"],
            f"{token['uses']} of {token['uses_max']} keys",
            moment(token["expires_s"]) if token["expires_s"] else "never",
            "yes" if token["vouches"] else "no",
        )
    output.print(f"this run admits by: {admission['mode']}")
    output.print(table)


def moment(seconds: int) -> str:
    """A time of the wall clock, in UTC; the last one that there is for any later."""
    last = int(datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp())
    return f"{datetime.fromtimestamp(min(seconds, last), UTC):%Y-%m-%d %H:%M:%S} UTC"


def _members(rows: list[Mapping[str, Any]]) -> Table:
    table = Table(
        "node",
        "name",
        "state",
        "host",
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=quantity(len(rows), "member"),
        title_justify="left",
    )
    table.add_column("counted", justify="right")
    table.add_column("why")
    for row in rows:
        standing = f" ({row['standing']})" if row.get("standing") else ""
        table.add_row(
            short(row["peer_id"]),
            row["name"],
            row["state"] + standing,
            row["host"],
            str(row["rounds_counted"]),
            row["reason"],
        )
    return table


def _refused(document: Mapping[str, Any]) -> list[str]:
    bans = [f"banned: {each['target']} {each['reason']}".rstrip() for each in document["bans"]]
    away = [
        f"kept away for {each['seconds']} s: {each['peer_id']} {each['reason']}".rstrip()
        for each in document["away"]
    ]
    allowed = [f"on the list: {peer}" for peer in document["admission"]["allowed"]]
    return [f"admits by: {document['admission']['mode']}", *bans, *away, *allowed]
