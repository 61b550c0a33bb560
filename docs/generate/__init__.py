"""Writes the reference pages that are made from code, and compares them with it."""

from docs.generate.metrics import metrics
from docs.generate.run_file import run_file
from docs.generate.settings import settings
from docs.generate.tables import ROOT
from docs.generate.wire import wire

REFERENCE = ROOT / "docs" / "reference"

PAGES = {
    "run-file.md": run_file,
    "settings.md": settings,
    "wire.md": wire,
    "metrics.md": metrics,
}


def write() -> None:
    """Write every page."""
    for name, make in PAGES.items():
        (REFERENCE / name).write_text(make(), encoding="utf-8")


def outdated() -> list[str]:
    """Names of the pages that are not what the code says."""
    made = ((name, REFERENCE / name, make()) for name, make in PAGES.items())
    return [
        name for name, path, text in made if not path.exists() or path.read_text("utf-8") != text
    ]
