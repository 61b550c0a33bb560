"""`lockstep status URL`: the status of a run from its coordinator, as tables or as JSON."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import grpc
import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from lockstep.console import (
    agreement,
    apart_text,
    bytes_text,
    number,
    output,
    replicas_text,
    write_json,
)
from lockstep.service.contact import connect, open_channel, translated
from protocol import wire_pb2, wire_pb2_grpc
from protocol.border.join_link import JoinLink, parse_link
from protocol.border.text import clean_document, one_line
from protocol.codec.decoding import UNREADABLE
from protocol.errors import RemoteProtocolError
from protocol.ids import short
from protocol.words import quantity

TIMEOUT_S = 5.0
"""Longest wait for a coordinator. It answers in milliseconds; a far one over a bad link takes a
second or two."""

NAME_SHOWN = 40
"""Characters of a run's id that an error shows; one is 32."""

AUDITOR_NAME = "auditor"
"""The name with which auditors come, which have places among the relays."""

COMMITS_SHOWN = 5
"""Number of the newest commits in the table."""


def status(url: str, json_path: str | None) -> None:
    """Prints the status of the coordinator at `url`, or writes it as JSON."""
    document = ask(url)
    if json_path is not None:
        write_json(json_path, document)
    if json_path != "-":
        for part in rendered(document, url):
            output.print(part)


def rendered(document: Mapping[str, Any], url: str) -> list[RenderableType]:
    """The status as tables; `RemoteProtocolError` for a document of another shape."""
    try:
        return render(document)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise RemoteProtocolError(
            f"coordinator {url}: expected a status of the form of this release, got another "
            f"({type(error).__name__}: {error}); --json - shows it as it is"
        ) from None


def ask(coordinator: str, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Asks a coordinator, named by a link or HOST:PORT, for its status document.

    Raises `UnavailableError` without an answer, `VersionError` when another server answers,
    `RemoteProtocolError` when the answer is no JSON object, `SettingsError` for another run than
    the link names.
    """
    with asking(coordinator, timeout_s) as answer:
        return answer()


@contextmanager
def asking(
    coordinator: str, timeout_s: float = TIMEOUT_S
) -> Iterator[Callable[[], dict[str, Any]]]:
    """Yields `ask` for one coordinator, over one connection: a port is wary of a host that opens
    many.
    """
    link = parse_link(coordinator)
    connect(link.address)
    with open_channel(link, timeout_s) as channel:
        stub = wire_pb2_grpc.CoordinatorStub(channel)
        yield lambda: _answer(stub, link, timeout_s)


def _answer(
    stub: wire_pb2_grpc.CoordinatorStub, link: JoinLink, timeout_s: float
) -> dict[str, Any]:
    address = link.address
    try:
        reply = stub.GetStatus(wire_pb2.GetStatusRequest(), timeout=timeout_s)
    except grpc.RpcError as error:
        raise translated(error, address) from None
    try:
        document = msgspec.json.decode(reply.json)
    except UNREADABLE as error:
        raise RemoteProtocolError(
            f"coordinator {address}: expected a status in JSON, got {error}"
        ) from None
    if not isinstance(document, dict):
        raise RemoteProtocolError(
            f"coordinator {address}: expected an object, got {type(document).__name__}"
        )
    link.require_run(one_line(str(document.get("run_id")), NAME_SHOWN))
    return document


def render(document: Mapping[str, Any]) -> list[RenderableType]:
    """The status as tables of at most 80 columns. The names and reasons in it are cleaned: their
    authors are strangers.
    """
    document = clean_document(document)
    members = document.get("members", ())
    commits = sorted(document.get("last_commits", ()), key=lambda commit: int(commit["round"]))
    tables: list[RenderableType] = [_run_table(document)]
    if commits:
        tables.append(_commit_table(commits[-COMMITS_SHOWN:]))
    if members:
        tables.append(_member_table(members))
    return tables


def _run_table(document: Mapping[str, Any]) -> Table:
    steps, digests = document.get("steps", {}), document.get("digests", {})
    data, traffic = document.get("data", {}), document.get("traffic", {})
    facts = {
        "problem": _problem_text(document),
        "run": f"{document.get('name', '?')} ({document.get('run_id', '?')})",
        "round": _round_text(document),
        "because": "" if document.get("state_lost") else document.get("reason"),
        "pace": document.get("pace", {}).get("round"),
        "demoted": _demoted_text(document),
        "notice": _newest(document, "notices"),
        "operator": _newest(document, "newest"),
        "steps": f"{steps.get('committed')} of {steps.get('total')}, "
        f"{quantity(steps.get('skipped') or 0, 'round')} skipped",
        "loss": number(document.get("loss")),
        "validation": _validation_text(document.get("validation") or {}),
        "replicas": apart_text(document.get("consensus")) or replicas_text(digests),
        "checkpoint": _checkpoint_text(document),
        "payloads": bytes_text(traffic.get("payload_bytes") or 0),
        "admits": admitted_nodes(document.get("operator", {}).get("admission")),
        "relays": _relays_text(document),
        "samples": _samples_text(data),
        "page": document.get("page"),
    }
    table = Table.grid(padding=(0, 2))
    for name, value in facts.items():
        if value:
            table.add_row(name, str(value), style="bold red" if name == "problem" else "")
    return table


def _problem_text(document: Mapping[str, Any]) -> str:
    """All that is wrong and needs the operator; empty when nothing is."""
    alarm = document.get("audit", {}).get("alarm")
    agreed = document.get("digests", {}).get("agreed", True)
    differ = "" if agreed else "replicas were not equal after the newest round that was compared"
    return "; ".join(filter(None, (alarm, document.get("state_lost"), differ)))


def _samples_text(data: Mapping[str, Any]) -> str:
    """The samples that count, that went back into the data order, and that are lost."""
    lost = data.get("samples_lost") or 0
    returned = (data.get("samples_left_out") or 0) - lost
    words = [f"{data.get('samples_trained') or 0:,} used"]
    words += [f"{returned:,} given back"] if returned else []
    words += [f"{lost:,} lost"] if lost else []
    return ", ".join(words)


def _round_text(document: Mapping[str, Any]) -> str:
    """The round and the phase; before the first round only the phase."""
    round, phase = document.get("round"), str(document.get("phase"))
    return phase if isinstance(round, int) and round < 0 else f"{round}: {phase}"


def _validation_text(validation: Mapping[str, Any]) -> str:
    """The newest validation loss, by whom, and how the next one stands."""
    if validation.get("loss") is None:
        return str(validation.get("next") or "")
    by = validation.get("name") or short(str(validation.get("peer_id")))
    words = f"{number(validation['loss'])} after round {validation.get('round')}, measured by {by}"
    other = "on other data than before" if validation.get("other_data") else ""
    return "; ".join(filter(None, (words, other, validation.get("next"))))


def _checkpoint_text(document: Mapping[str, Any]) -> str:
    """Where the newest checkpoint is, and how the next one stands."""
    checkpoints = document.get("checkpoint", {})
    made = checkpoints.get("made", ())
    second = made[0].get("confirmed_by") if made else None
    named = _named(second, document) if second else ""
    by = f"confirmed by {named}" if named else "no second member confirmed it"
    where = str(checkpoints.get("where") or "")
    return "; ".join(filter(None, (where, where and made and by, checkpoints.get("next"))))


def admitted_nodes(rule: object) -> str:
    """The nodes that a run with this rule of admission takes; empty when it takes everybody."""
    words = {"token": "nodes with a token of its operator", "list": "nodes on its operator's list"}
    return words.get(str(rule), "")


def _relays_text(document: Mapping[str, Any]) -> str:
    """The number of relays, of those among them that add, and of auditors."""
    found = document.get("relays", ())
    auditors = sum(each.get("name") == AUDITOR_NAME for each in found)
    relays = len(found) - auditors
    adding = sum(bool(each.get("adds")) for each in found)
    also = f" ({adding} that add)" if adding > 1 else " (1 that adds)" if adding else ""
    words = [f"{relays}{also}"] if relays else []
    if auditors:
        words.append(quantity(auditors, "auditor"))
    return ", ".join(words)


def _named(peer: object, document: Mapping[str, Any]) -> str:
    """A node as people know it: a member's name, or the first characters of its id."""
    members = document.get("members", ())
    names = {member.get("peer_id"): member.get("name") for member in members}
    return str(names.get(peer) or short(str(peer)))


def _demoted_text(document: Mapping[str, Any]) -> str:
    """The key that lost its standing last, why, and the number of the others shown."""
    demoted = document.get("audit", {}).get("demoted", ())
    if not demoted:
        return ""
    others = f"; {len(demoted) - 1} more" if len(demoted) > 1 else ""
    named = _named(demoted[0].get("peer_id"), document)
    return f"{named}: {demoted[0].get('reason')}{others}"


def _newest(document: Mapping[str, Any], kind: str) -> str:
    """What the operator told everyone, or did, last."""
    found = document.get("operator", {}).get(kind, ())
    return str(found[-1].get("text", "")) if found else ""


def _member_table(members: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(
        "node",
        "name",
        "state",
        box=SIMPLE_HEAD,
        pad_edge=False,
        title=quantity(len(members), "member"),
        title_justify="left",
    )
    for heading in ("round", "samples/s", "strikes"):
        table.add_column(heading, justify="right")
    table.add_column("why")
    for member in members:
        peer, name = short(str(member.get("peer_id", "?"))), str(member.get("name") or "")
        table.add_row(
            peer,
            "" if name == peer else name,
            " ".join(filter(None, (str(member.get("state")), _standing(member)))),
            str(member.get("round")),
            f"{member.get('samples_per_second') or 0:.1f}",
            str(member.get("strikes")),
            str(member.get("remark") or member.get("reason") or ""),
        )
    return table


def _standing(member: Mapping[str, Any]) -> str:
    """The standing of a member's key in a public run, unless it is as most have it."""
    word = member.get("standing")
    return f"({word})" if word and word != "counted" else ""


def _compared(commit: Mapping[str, Any]) -> bool:
    """Whether two nodes reported the state after a commit: one alone is equal to nobody."""
    return (commit.get("digest_reports") or 0) > 1


def _commit_table(commits: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, title="last commits", title_justify="left")
    for heading in ("round", "step", "authors", "loss", "state digest", "reports", "replicas"):
        table.add_column(heading, justify="right", no_wrap=True)
    for commit in commits:
        table.add_row(
            str(commit.get("round")),
            str(commit.get("step")),
            str(len(commit.get("contributors", ()))),
            number(commit.get("loss")),
            str(commit.get("state_digest") or ""),
            str(commit.get("digest_reports")),
            agreement(commit.get("digests_agree")) if _compared(commit) else "",
        )
    return table
