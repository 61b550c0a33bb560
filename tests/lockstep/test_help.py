"""The help of every command: it fits 80 columns, explains every option and shows every default."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from lockstep.cli import app, main

COLUMNS = 80


def commands(command: Any, *names: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command of the program with the words that call it, groups included."""
    yield names, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, *names, name)


EVERY = list(commands(typer.main.get_command(app)))
IDS = [" ".join(("lockstep", *names)) for names, _ in EVERY]


def help_text(names: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """The printed help, without frames and line breaks."""
    assert main([*names, "--help"]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= COLUMNS
    return re.sub(r"[│╭╮╰╯─\s]+", " ", printed)


def default_of(parameter: Any) -> str:
    """The default as the help must show it; empty for a flag, and for an option without one."""
    if isinstance(parameter.show_default, str):
        return f"({parameter.show_default})"
    if parameter.default in (None, "", False) or not parameter.show_default:
        return ""
    return str(parameter.default)


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(COLUMNS))


@pytest.mark.parametrize(("names", "command"), EVERY, ids=IDS)
def test_the_help_shows_every_default(
    names: tuple[str, ...], command: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = help_text(names, capsys)
    for parameter in command.params:
        if not parameter.hidden and (default := default_of(parameter)):
            shown = re.escape(f"[default: {default}]").replace(r"\ ", r"\s+")
            assert re.search(shown, text), f"{parameter.name}: expected {default} in {text}"


@pytest.mark.parametrize(("names", "command"), EVERY, ids=IDS)
def test_every_option_has_a_help_text_without_markup_that_begins_with_a_capital(
    names: tuple[str, ...], command: Any
) -> None:
    for parameter in command.params:
        if not parameter.hidden:
            assert parameter.help, f"{names}: {parameter.name} has no help text"
            assert "[" not in parameter.help, f"{names}: {parameter.name}: rich eats brackets"
            assert parameter.help[0].isupper()
            assert parameter.help.endswith(".")


def test_defaults_that_depend_on_something_are_worded(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert "[default: (DIR/summary.json)]" in help_text(("demo",), capsys)
    assert "[default: (RUN.coordinator, beside the run file)]" in help_text(
        ("coordinator",), capsys
    )


def test_every_command_stands_in_a_group_with_its_first_sentence_alone() -> None:
    groups: dict[str, list[str]] = {}
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
        groups.setdefault(command.rich_help_panel, []).append(name)
        first = (command.help or "").partition("\n\n")[0]
        assert len(first) <= 120, f"{name}: the list of commands shows all of: {first}"
    assert list(groups) == ["Give a machine to a run", "Run one", "Try, predict and check"]
    assert groups["Give a machine to a run"][0] == "join"


def test_the_options_of_join_stand_in_groups() -> None:
    command = typer.main.get_command(app).commands["join"]  # type: ignore[attr-defined]
    sizes: dict[str, int] = {}
    for option in command.params:
        if option.param_type_name == "option" and not option.hidden:
            panel = option.rich_help_panel or "Options"
            sizes[panel] = sizes.get(panel, 0) + 1
    assert len(sizes) >= 5
    assert max(sizes.values()) <= 16, sizes
    assert sizes["Options"] <= 5, "the rest has a group"
