"""The pages as these tests read them: their links, their anchors, their commands."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")
_LINK = re.compile(r"\[(?:[^\]]|\n)*?\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+?)(?: \{#([\w-]+)\})?$", re.MULTILINE)
_INDENTED = re.compile(r"^(?:    |\t)(.+)$", re.MULTILINE)


def pages() -> list[Path]:
    """Every page of docs/ and at the root."""
    return sorted(DOCS.rglob("*.md")) + [ROOT / name for name in AT_THE_ROOT]


def links(page: Path) -> list[str]:
    """Targets of the links of a page, those to other hosts left out."""
    text = _CODE.sub("", _FENCE.sub("", page.read_text("utf-8")))
    return [found for found in _LINK.findall(text) if "://" not in found]


def anchors(page: Path) -> set[str]:
    """Anchors that a page has, made of its headings as the site makes them."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    return {given or slug(title) for title, given in _HEADING.findall(text)}


def slug(title: str) -> str:
    """The anchor of a heading: `toc` of Python-Markdown."""
    plain = re.sub(r"[^\w\s-]", "", title.replace("`", "")).strip().lower()
    return re.sub(r"[-\s]+", "-", plain)


def mentions(page: Path) -> Iterator[str]:
    """Commands of `lockstep` within sentences and tables, without their first word."""
    text = _FENCE.sub("", page.read_text("utf-8"))
    for found in _CODE.findall(text):
        words = found.strip("`").split()
        if len(words) > 1 and words[0] == "lockstep" and re.match(r"[a-z-]+$", words[1]):
            yield " ".join(words[1:])


def commands(page: Path) -> Iterator[str]:
    """Command lines of `lockstep` in the code blocks of a page, without what stands before it."""
    text = page.read_text("utf-8")
    blocks = [found.group(0) for found in _FENCE.finditer(text)]
    lines = [line for block in blocks for line in block.splitlines()]
    lines += _INDENTED.findall(_FENCE.sub("", text))
    for line in lines:
        found = re.match(r"(?:sudo )?(?:\S*/)?lockstep (?=[a-z-])(.+)", line.strip())
        if found:
            yield re.sub(r"\s+#.*$", "", found[1]).strip()
