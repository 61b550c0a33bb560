"""The run that a journal belongs to, by the rows of its table `meta`: format, run id, run file."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from protocol.codec.decoding import UNREADABLE
from protocol.errors import SettingsError, StorageError, VersionError
from protocol.runfile import RunSpec, parse_run_json

FORMAT = "19"
"""Version of the tables, of the events' names and fields, of the snapshots, and of what a commit's
signature covers."""

CHANGES_SHOWN = 3
"""Longest list of fields in the message about another run file."""


def spec_in(stored: Mapping[str, Any], path: Path) -> RunSpec:
    """The run file in the rows of `meta` of the journal at `path`. Raises `VersionError` for a
    journal of another format, `StorageError` for a damaged one.
    """
    require_format(stored, path)
    try:
        blob = msgspec.convert(stored.get("run_json"), bytes)
        return parse_run_json(blob, f"the run file in {path}")
    except (SettingsError, *UNREADABLE) as error:
        raise StorageError(
            f"{path} is damaged: {error}; put the directory back from its newest copy"
        ) from None


def require_format(stored: Mapping[str, Any], path: Path) -> None:
    """Raises `VersionError` unless a journal with these rows of `meta` is of this release."""
    if (found := stored.get("format")) != FORMAT:
        raise VersionError(
            f"{path}: expected journal format {FORMAT}, got {found}; continue this run with the "
            "release of Lockstep that wrote it, or use another --directory"
        )


def difference(before: bytes, now: bytes) -> str:
    """Why the same directory makes another run, by both run files, and what to do."""
    try:
        changed = list(_changed(msgspec.json.decode(before), msgspec.json.decode(now)))
    except (AttributeError, TypeError, *UNREADABLE):
        return "its run file is damaged: put the directory back from its newest copy"
    if not changed:
        return "the run file is the same, so key.pem is another: put the run's own key back"
    more = "" if len(changed) <= CHANGES_SHOWN else f" and {len(changed) - CHANGES_SHOWN} more"
    return (
        f"the run file was changed ({', '.join(changed[:CHANGES_SHOWN])}{more}): change it back "
        "(`lockstep run extend` makes a run longer), or begin a new run in another --directory"
    )


def _changed(before: Mapping[str, Any], now: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Fields that differ, with their values."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changed(old, new, f"{path}{name}.")
        elif old != new:
            yield f"{path}{name} was {old!r:.40}, is {new!r:.40}"
