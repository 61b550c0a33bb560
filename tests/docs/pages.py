"""The pages as these tests read them: their links, their anchors, their commands."""

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
AT_THE_ROOT = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")

_FENCE = re.compile(r"^( *)```(?P<language>.*?)\n(?P<body>.*?)^\1```$", re.MULTILINE | re.DOTALL)
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


def fences(page: Path) -> Iterator[tuple[str, str]]:
    """Language and text of each block between fences, without its indentation."""
    for found in _FENCE.finditer(page.read_text("utf-8")):
        yield found["language"], textwrap.dedent(found["body"])


def typed(page: Path) -> Iterator[str]:
    """What a reader may type: the lines of blocks of `sh` and of indented blocks; a line that ends
    with a backslash goes on in the next.
    """
    text = page.read_text("utf-8")
    blocks = [body for language, body in fences(page) if language == "sh"]
    blocks += [f"{line}\n" for line in _INDENTED.findall(_FENCE.sub("", text))]
    for line in "".join(blocks).replace("\\\n", " ").splitlines():
        yield line.strip()


def commands(page: Path) -> Iterator[str]:
    """Command lines of `lockstep` among them, without what stands before it."""
    for line in typed(page):
        found = re.match(
            r"(?:sudo |docker compose exec \w+ )?(?:\S*/)?lockstep (?=[a-z-])(.+)", line
        )
        if found:
            yield re.sub(r"\s+#.*$", "", found[1]).strip()
