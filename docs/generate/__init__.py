"""Writes what the pages have from code: reference pages, the guides' screens and the picture of a
terminal; compares them.
"""

from collections.abc import Iterator
from pathlib import Path

from docs.generate.metrics import metrics
from docs.generate.run_file import run_file
from docs.generate.screens import GUIDES, MAKERS, with_screens
from docs.generate.settings import settings
from docs.generate.tables import ROOT
from docs.generate.terminal import terminal
from docs.generate.wire import wire

REFERENCE = ROOT / "docs" / "reference"

TERMINAL = ROOT / "docs" / "figures" / "terminal.svg"

PAGES = {
    "run-file.md": run_file,
    "settings.md": settings,
    "wire.md": wire,
    "metrics.md": metrics,
}


def write() -> None:
    """Write every page, and the screens of the guides."""
    for path, text in _made():
        path.write_text(text, encoding="utf-8")


def outdated() -> list[Path]:
    """Pages that are not what the code says."""
    return [path for path, text in _made() if not path.exists() or path.read_text("utf-8") != text]


def _made() -> Iterator[tuple[Path, str]]:
    yield TERMINAL, terminal()
    for name, make in PAGES.items():
        yield REFERENCE / name, make()
    for name in MAKERS:
        yield GUIDES / name, with_screens(name, (GUIDES / name).read_text("utf-8"))
