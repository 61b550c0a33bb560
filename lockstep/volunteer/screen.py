"""The screen of a joined machine: one calm table of at most 80 columns, from a node's status.

Pure except for the colours: a status document goes in, a table comes out. `lockstep me` prints the
same table once.
"""

from collections.abc import Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lockstep.console import NARROWEST_COLUMNS, bytes_text
from protocol.clock import length_text
from protocol.ids import short
from protocol.words import quantity

COLOURS = {
    "counted": "green",
    "training": "green",
    "late": "yellow",
    "left out": "yellow",
    "skipped": "yellow",
    "muted": "red",
    "held": "red",
    "no session": "red",
}
"""Colours of states; others have none."""

HINT = "Ctrl-C finishes the round and leaves; from another terminal: lockstep pause, me"


def state_words(status: Mapping[str, Any]) -> str:
    """The node's place in its run with the reason, as one sentence."""
    standing = status.get("standing", {})
    state, reason = str(standing.get("state", "starting")), str(standing.get("reason", ""))
    if reason.startswith(state):  # "waiting for members: 1 of 2 are ready"
        return reason
    return f"{state}: {reason}" if reason else state


def traffic_bytes(status: Mapping[str, Any], way: str) -> int:
    """Bytes that the node has moved in one direction ("up" or "down"), of every kind."""
    traffic = status.get("traffic", {})
    kinds = ("payload", "catch_up", "control", "overhead")
    return sum(int(traffic.get(f"{kind}_{way}_bytes") or 0) for kind in kinds)


def render(status: Mapping[str, Any], hint: str = HINT) -> RenderableType:
    """The node's status as a table, a bar of the run's steps and a hint."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(width=NARROWEST_COLUMNS - 12, overflow="fold")
    for name, value in _rows(status):
        table.add_row(name, value)
    run, done = status.get("run", {}), int(status.get("round", -1)) + 1
    parts: list[RenderableType] = [table]
    if steps := int(run.get("steps") or 0):
        parts.append(_line(ProgressBar(total=steps, completed=done, width=NARROWEST_COLUMNS)))
    if hint:
        parts.append(Text(hint, style="dim"))
    return Group(*parts)


def _line(part: RenderableType) -> RenderableType:
    """A part on a line of its own: rich ends no line after a bar, and what follows is cut off."""
    line = Table.grid()
    line.add_row(part)
    return line


def _rows(status: Mapping[str, Any]) -> list[tuple[str, Text]]:
    run, standing = status.get("run", {}), status.get("standing", {})
    state = Text(state_words(status), style=COLOURS.get(str(standing.get("state")), ""))
    rows = {
        "run": _run(status, run),
        "me": Text(_own(status)),
        "state": state,
        "now": Text(_now(status)),
        "note": Text(_note(status)),
        "data": Text(_data(status)),
        "loss": Text(_loss(status)),
        "work": Text(_work(status)),
        "ranks": Text(_ranks(status)),
        "in all": Text(in_all(status)),
        "part": Text(part_text(status)),
        "new": Text(_key(status)),
        "traffic": Text(_traffic(status)),
        "peers": Text(_peers(status)),
        "session": Text(_session(status)),
        "limits": Text(str(status.get("limits") or "")),
        "notice": Text(str(status.get("notice") or "")),
        "page": Text(str(status.get("page") or "")),
    }
    return [(name, value) for name, value in rows.items() if value.plain]


def _run(status: Mapping[str, Any], run: Mapping[str, Any]) -> Text:
    if not run.get("run_id"):
        return Text(f"at {status['coordinator']}" if status.get("coordinator") else "")
    applied, steps = int(status.get("round", -1)), run.get("steps")
    where = f"round {applied}" if applied >= 0 else "before its first round"
    where += f", {quantity(int(steps or 0), 'step')} in all"
    if left_s := run.get("seconds_left"):
        where += f", {length_text(round(left_s), 'seconds')} left"
    return Text(f"{run.get('name')} ({short(str(run['run_id']))}): {where}")


def _own(status: Mapping[str, Any]) -> str:
    name, own = str(status.get("name", "")), short(str(status.get("peer_id", "")))
    if not own:
        return ""
    facts = [own if name == own else f"{name} ({own})", str(status.get("hardware") or "")]
    return " · ".join(filter(None, facts))


def _now(status: Mapping[str, Any]) -> str:
    """The node's work or wait, unless the state says so already, and the time to the bell."""
    phase = str(status.get("waiting_for") or status.get("phase", ""))
    bell = status.get("bell_in_seconds")
    if bell is not None:
        return f"{phase} · {bell:.0f} s left"
    return "" if phase == status.get("standing", {}).get("reason") else phase


def _note(status: Mapping[str, Any]) -> str:
    """The last event of note, as that the node was removed for silence, unless the state says
    so.
    """
    note = str(status.get("note") or "")
    return "" if note in state_words(status) else note


def _data(status: Mapping[str, Any]) -> str:
    """Why the server of the training data gives none; empty if it does."""
    waits = status.get("data", {}).get("waits")
    return f"waits for its server: {waits}" if waits else ""


def _loss(status: Mapping[str, Any]) -> str:
    loss, found = status.get("loss"), status.get("validation") or {}
    words = [f"{loss:.4f} nats per token"] if isinstance(loss, int | float) else []
    if isinstance(measured := found.get("loss"), int | float):
        words.append(f"validation {measured:.4f} after round {found.get('round')}")
    return " · ".join(words)


def _work(status: Mapping[str, Any]) -> str:
    rounds = status.get("rounds", {})
    if not rounds.get("trained"):
        return ""
    facts = [
        f"counted in {rounds.get('counted', 0)} of {quantity(rounds['trained'], 'round')}",
        f"{status.get('tokens') or 0:,} tokens",
    ]
    facts += [f"share {quantity(status['share'], 'sample')}"] if status.get("share") else []
    return " · ".join(facts)


def in_all(status: Mapping[str, Any]) -> str:
    """The work of earlier sessions and other runs with that of this session; empty where there are
    none.
    """
    sums, rounds = status.get("totals", {}), status.get("rounds", {})
    run, everything = sums.get("run", {}), sums.get("all", {})
    if everything.get("trained", 0) <= rounds.get("trained", 0):
        return ""
    facts = [f"counted in {run['counted']:,} of {quantity(run['trained'], 'round')} of this run"]
    if sums["runs"] > 1:
        facts.append(f"{everything['counted']:,} rounds of {sums['runs']:,} runs")
    return " · ".join(facts)


def part_text(status: Mapping[str, Any]) -> str:
    """The part of this node's key in all work of the run; empty before the first of it counts."""
    percent = 100 * float(status.get("part") or 0)
    if not percent:
        return ""
    return f"{max(percent, 0.01):.{0 if percent >= 10 else 2}f} % of all work of the run so far"


def _key(status: Mapping[str, Any]) -> str:
    """How far a new key is on its way; empty for one whose word counts in full."""
    if not (key := status.get("key")):
        return ""
    return (
        f"{key['rounds']} of {key['needed']} rounds; your work always counts from about round "
        f"{key['counts_after'] + 1:,} on"
    )


def _traffic(status: Mapping[str, Any]) -> str:
    up, down = (bytes_text(traffic_bytes(status, way)) for way in ("up", "down"))
    return f"{up} up · {down} down"


def _ranks(status: Mapping[str, Any]) -> str:
    """Speed and memory of each rank of a node that has several."""
    return " · ".join(
        f"{rank}: {'no pass yet' if speed is None else f'{speed:,.3g} samples/s'}, "
        f"{bytes_text(about['memory_bytes'])}"
        for rank, about in enumerate(status.get("ranks") or ())
        for speed in (about["samples_per_second"],)
    )


def _peers(status: Mapping[str, Any]) -> str:
    links, members = status.get("links", {}), status.get("members")
    if not links:
        return ""
    missing = links.get("missing", {})
    words = f"{quantity(members or 0, 'member')} · {len(links.get('open', ()))} linked"
    if missing:
        peer, why = next(iter(missing.items()))
        words += f" · {len(missing)} not: {short(str(peer))} {why}"
    return words


def _session(status: Mapping[str, Any]) -> str:
    words, lost = str(status.get("session", "")), int(status.get("sessions_lost") or 0)
    again = "" if not lost else f" · lost {lost} time{'s' if lost > 1 else ''}"
    if status.get("standing", {}).get("state") == "no session":
        return again.removeprefix(" · ")
    return words + again
