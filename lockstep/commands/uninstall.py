"""`lockstep uninstall`: removes what Lockstep has written for this account, after a question.

    the home        identity, runs, work, data; also those of relay and auditor
    service units   stopped, and taken away

What was named with --directory, and a coordinator's directory, are their owner's own places: they
stay. The program itself is removed by what has installed it.
"""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.table import Table
from rich.text import Text

from lockstep.commands import service
from lockstep.console import bytes_text, output
from lockstep.exit_codes import UsageError
from lockstep.own_packages import how_to_remove
from lockstep.service.directory import owner_of
from lockstep.service.home import RUNS_NAME, SETTINGS_NAME, Home
from lockstep.service.keys import KEY_NAME
from lockstep.volunteer.consent import agrees, somebody_is_there
from lockstep.volunteer.ledger import WORK_NAME
from lockstep.volunteer.machine import USAGE_NAME
from node.system.files import storage_errors
from protocol.errors import StorageError

OWN_NAMES = (
    KEY_NAME,
    SETTINGS_NAME,
    USAGE_NAME,
    WORK_NAME,
    RUNS_NAME,
    "corpora",
    "relay",
    "auditor",
    "genesis",
)
"""What Lockstep writes in a home. All else is not touched: a home may be named by mistake."""

IDENTITY = (
    f"{KEY_NAME} is this computer's identity, and what it has earned in its runs: "
    "`lockstep keys backup FILE` keeps it"
)

STAYS = (
    "what you named yourself stays (--directory, a coordinator's directory); "
    "to remove the program too:"
)


def uninstall(home: Path, *, yes: bool, answer: Callable[[str], str] = input) -> None:
    """Lists what was written and removes it once somebody agrees. `UsageError` while a process
    works there, or where nobody can be asked.
    """
    home, units = home.expanduser(), service.installed()
    found = dict(written(home))
    if not found and not units:
        output.print(f"expected something of Lockstep in {home}, found nothing", soft_wrap=True)
    else:
        require_idle(home)
        _tell(found, units)
        if not yes and not _agrees(answer):
            output.print("nothing was removed")
            return
        for role in units:
            service.remove(role)
        _remove(home, found)
    output.print(f"{STAYS} {how_to_remove()}", soft_wrap=True)


def written(home: Path) -> Iterator[tuple[Path, int]]:
    """What lies in the home, each with its bytes, the runs one by one."""
    for path in (home / name for name in OWN_NAMES):
        if path.name == RUNS_NAME and path.is_dir():
            yield from ((run, _bytes(run)) for run in sorted(path.iterdir()))
        elif path.exists():
            yield path, _bytes(path)


def require_idle(home: Path) -> None:
    """`UsageError` while a process works in a directory of the home."""
    homes = [Home(home), *(Home(home / name) for name in ("relay", "auditor"))]
    if busy := [place for each in homes for place in each.at_work()]:
        works = f"{owner_of(busy[0]) or 'a process'} is at work in {busy[0]}"
        raise UsageError(f"{works}: end it first (a node: `lockstep finish`); nothing was removed")


def _tell(found: Mapping[Path, int], units: Sequence[str]) -> None:
    table = Table.grid(padding=(0, 2))
    for path, size in found.items():
        table.add_row(Text(str(path), overflow="fold"), bytes_text(size), _run_in(path))
    for role in units:
        table.add_row(Text(str(service.unit_path(role)), overflow="fold"), "", "stopped first")
    output.print(table)
    output.print(f"in all {bytes_text(sum(found.values()))}")
    if any(path.name == KEY_NAME for path in found):
        output.print(IDENTITY, soft_wrap=True)


def _run_in(path: Path) -> str:
    with suppress(StorageError):
        owner = owner_of(path) if path.is_dir() else None
        return str(owner.run) if owner else ""
    return ""


def _agrees(answer: Callable[[str], str]) -> bool:
    if not somebody_is_there():
        raise UsageError("expected your consent to this, and nobody can be asked here: add --yes")
    return agrees("remove all of this?", answer)


def _remove(home: Path, found: Iterable[Path]) -> None:
    for path in found:
        with storage_errors(path, doing="remove"):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    with suppress(OSError):  # something else lies there
        (home / RUNS_NAME).rmdir()
    with suppress(OSError):
        home.rmdir()
    output.print("all of this is removed", soft_wrap=True)


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() and not path.is_symlink() else [path]
    return sum(each.lstat().st_size for each in files if not each.is_dir())
