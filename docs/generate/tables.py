"""What all generated pages share: their first line, tables, numbers."""

from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The repository."""


def made_from(source: str) -> str:
    """The comment that begins a generated page."""
    return (
        f"<!-- Made by docs/generate from {source}; run `make docs` after a change there. -->\n\n"
    )


def table(heads: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table in Markdown."""
    lines = [heads, ("---",) * len(heads), *rows]
    escaped = ([cell.replace("|", "\\|") for cell in line] for line in lines)
    return "".join(f"| {' | '.join(line)} |\n" for line in escaped)


def number(value: float) -> str:
    """With commas between thousands."""
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"
