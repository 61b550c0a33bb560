"""The words that the page of troubles explains are those that the programs say."""

import ast
import functools
import re
from collections.abc import Iterator

import pytest

from tests.docs.pages import DOCS
from tests.support.sources import trees

PAGE = (DOCS / "guide" / "troubleshooting.md").read_text("utf-8")

FIELDS = {"catching up", "trained", "left_out", "counted", "round without gradients"}
"""Names of states and fields, too short to be looked for as a message."""


COMPOSED = {
    "waiting for members: N of M are ready": ("waiting for ", " are ready"),
    "N nodes refused this run file; the coordinator's log says why": (
        "refused this run file; the coordinator's log says why",
    ),
    "this key is at work at ...": ("this key is at work",),
    "round N was skipped: C of R contributors have standing; Q are needed": (
        " was skipped: ",
        " standing; ",
        " are needed",
    ),
}
"""Parts of messages in which a value has words, too."""


def messages() -> Iterator[str]:
    """What the page quotes: the left column of its tables, and the words of its questions."""
    reasons = PAGE.partition("## Why am I not counted")[2].partition("## Other questions")[0]
    for row in re.findall(r"^\| (.+?) \|", reasons, re.MULTILINE):
        yield from (found for found in re.findall(r"`([^`]+)`", row) if found not in FIELDS)
    yield from re.findall(r'^\*\*(?:Refused: )?"(.+?)"\.\*\*', PAGE, re.MULTILINE)


@functools.cache
def said() -> str:
    """Every text in the programs, in a line each; values in a text are gaps."""
    found = []
    for tree in trees().values():
        for each in ast.walk(tree):
            if isinstance(each, ast.JoinedStr):
                texts = [
                    part.value if isinstance(part, ast.Constant) else "\0" for part in each.values
                ]
                found.append("".join(map(str, texts)))
            elif isinstance(each, ast.Constant) and isinstance(each.value, str):
                found.append(each.value)
    return "\n".join(found)


def test_the_page_quotes_messages() -> None:
    assert len(list(messages())) >= 10


@pytest.mark.parametrize("message", list(messages()))
def test_a_message_that_the_page_explains_is_one_of_the_programs(message: str) -> None:
    """Single capitals and `...` stand for values."""
    words = message[0].lower() + message[1:] if message.istitle() else message
    parts = COMPOSED.get(message) or re.split(r"\b[A-Z]\b|\.\.\.", words)
    for part in filter(lambda part: len(part) > 3, (part.strip(" :;") for part in parts)):
        assert part in said(), f"nothing says {part!r} of {message!r}"


def test_a_message_that_nothing_says_would_be_found() -> None:
    assert "your node is asleep" not in said()
