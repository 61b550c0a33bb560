"""Each command of a page is one of the command line, and each block of commands is one."""

import re
import shlex
import subprocess
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import typer

from lockstep.cli import app
from tests.docs.pages import DOCS, ROOT, commands, fences, mentions, pages


def guides() -> list[Path]:
    return [*sorted((DOCS / "guide").glob("*.md")), ROOT / "README.md"]


def told() -> list[tuple[str, str]]:
    return [(str(page.relative_to(ROOT)), line) for page in guides() for line in commands(page)]


def test_guides_and_readme_tell_commands() -> None:
    assert len(told()) > 20


@pytest.mark.parametrize(("page", "line"), told())
def test_the_command_line_accepts_a_command_of_a_guide(page: str, line: str) -> None:
    command = accepted(line)
    assert not getattr(command, "commands", {}) or "--version" in line, f"{page}: {line}"


UNSAID = {"MissingParameter", "BadOptionUsage"}
"""Errors of a command of which a sentence leaves out an argument, or an option's value."""


def test_the_command_line_knows_every_command_that_a_sentence_names() -> None:
    named = [(str(page.relative_to(ROOT)), line) for page in written() for line in mentions(page)]
    assert len(named) > 20
    for page, line in named:
        error = refusal(line.removesuffix(" COMMAND"))
        assert error is None or type(error).__name__ in UNSAID, f"{page}: {line}: {error}"


@pytest.mark.parametrize("line", ["joins HOST:PORT", "join", "join HOST:PORT --nise 3", "me me"])
def test_a_line_that_is_no_command_would_be_found(line: str) -> None:
    assert refusal(line)


def written() -> list[Path]:
    return [page for page in pages() if "results" not in page.relative_to(ROOT).parts]


VALUES = {"PERCENT": "50", "BYTES": "1000000000", "MINUTES": "5", "SIZE": "1000", "N": "2"}
"""Numbers for the places of the guides where a number is to be put in."""


def refusal(line: str) -> typer.TyperException | None:
    try:
        accepted(line)
    except typer.TyperException as error:
        return error
    return None


def accepted(line: str) -> Any:
    """The command that the real command line finds in a line; it parses all of it and runs
    nothing. `typer.TyperException` for a line that it refuses.
    """
    for place, value in VALUES.items():
        line = re.sub(rf" {place}\b", f" {value}", line)
    command: Any = typer.main.get_command(app)
    context: Any = None
    name, words = "lockstep", shlex.split(line)
    with ExitStack() as opened:
        while words or not getattr(command, "commands", {}):
            try:
                context = command.make_context(name, words, parent=context)
            except typer.Exit:  # --version, --help
                return command
            opened.enter_context(context)
            if not getattr(command, "commands", {}):
                return command
            words = [*context._protected_args, *context.args]
            if words:
                name, command, words = command.resolve_command(context, words)
        return command


# ---- blocks between fences

PROGRAMS = {
    "awk", "docker", "for", "lockstep", "loginctl", "llama-cli", "lm_eval", "make", "pip", "python",
    "pipx", "python3", "ss", "sudo", "torchrun", "uv",
}  # fmt: skip
"""First words of the lines that a reader may type."""


@pytest.mark.parametrize("page", sorted((DOCS / "guide").glob("*.md")), ids=lambda page: page.stem)
def test_every_block_of_a_guide_says_what_it_is(page: Path) -> None:
    known = {"sh", "text", "python", "toml", "json", "yaml", "ini", "nft"}
    assert {language for language, _ in fences(page)} <= known


@pytest.mark.parametrize("page", sorted((DOCS / "guide").glob("*.md")), ids=lambda page: page.stem)
def test_a_shell_takes_every_block_of_commands(page: Path) -> None:
    for language, body in fences(page):
        if language == "sh":
            done = subprocess.run(["bash", "-n"], input=body, capture_output=True, text=True)
            assert not done.returncode, f"{body}{done.stderr}"
            assert all(map(begins_well, statements(body))), body


def test_a_block_of_commands_that_was_wrapped_like_prose_would_be_found() -> None:
    body = "lm_eval --model hf\n--tasks lambada_openai\n"
    assert [begins_well(line) for line in statements(body)] == [True, False]


def statements(body: str) -> list[str]:
    """Lines of a block that begin with a program; those within a loop are left out."""
    whole = body.replace("\\\n", " ").splitlines()
    return [line for line in whole if not line.startswith(" ") and line != "done"]


def begins_well(line: str) -> bool:
    """Whether a line begins with a known program, or sets a variable."""
    first = line.split(maxsplit=1)[0]
    return first.rpartition("/")[2] in PROGRAMS or re.match(r"\w+=\S+$", line) is not None
