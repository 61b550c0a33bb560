"""A command's options are made of the declarations of its settings, and give the settings back."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer

from lockstep.cli import main
from lockstep.commands import join as joining
from lockstep.declared import CommandGroup, Here
from lockstep.exit_codes import ExitCode
from lockstep.settings_file import option_names
from protocol.errors import SettingsError
from protocol.option import Option, check_bounds


@dataclass(frozen=True)
class Lamp:
    colour: Annotated[str, Option("NAME", "Looks")] = "white"
    """Colour of
    its light."""
    hours: Annotated[tuple[int, ...], Option("LIST", reads=lambda text: tuple(map(int, text)))] = ()
    """Hours of its life."""
    dimmed: Annotated[bool, Option()] = False
    """Save power."""
    serial: int = 7


@dataclass(frozen=True)
class Room:
    doors: Annotated[int, Option("N", least=1, most=4)]
    """Doors of the room."""
    lamp: Lamp = field(default_factory=Lamp)
    open: Annotated[bool, Option(names=("--ajar",))] = False
    """Leave a door open."""

    def __post_init__(self) -> None:
        check_bounds(self)


def called(function: Any, *words: str) -> Any:
    """What a command hands to its function when it is called with these words."""
    app = CommandGroup(pretty_exceptions_enable=False)
    app.command()(function)
    return app(words, standalone_mode=False)


def furnish(room: Room, *, rent: Annotated[int, Option("N", help="Rent.")] = 5) -> Any:
    return room, rent


def test_a_class_of_settings_is_made_of_options_and_defaults() -> None:
    assert called(furnish, "--doors", "2") == (Room(2), 5)
    words = ["--doors", "2", "--colour", "red", "--hours", "123", "--ajar", "--rent", "9"]
    assert called(furnish, *words) == (Room(2, Lamp("red", (1, 2, 3)), True), 9)


def test_the_environment_sets_it_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_COLOUR", "blue")
    assert called(furnish, "--doors", "1")[0].lamp == Lamp("blue")


def test_help_is_the_docstring_and_a_settings_file_knows_the_names() -> None:
    app = CommandGroup()
    app.command()(furnish)
    command: Any = typer.main.get_command(app)
    helps = {each.name: getattr(each, "help", "") for each in command.params}
    assert helps["colour"].startswith("Colour of its light.")
    assert {"doors", "colour", "dimmed", "open", "rent"} <= option_names(command).keys()
    assert not {"serial", "lamp", "room"} & option_names(command).keys()
    assert {each.name: each.rich_help_panel for each in command.params}["colour"] == "Looks"


def test_a_command_may_take_a_part_and_other_defaults() -> None:
    def dim(
        room: Annotated[Room, Here(only=("doors", "colour"), defaults={"colour": "grey"})],
    ) -> Any:
        return room

    assert called(dim, "--doors", "1") == Room(1, Lamp("grey"))
    with pytest.raises(typer.TyperException, match="ajar"):
        called(dim, "--doors", "1", "--ajar")


def test_changes_are_what_was_named() -> None:
    def change(changes: Annotated[dict[str, Any], Here(changes=Room)]) -> Any:
        return changes

    assert called(change) == {}
    assert called(change, "--doors", "9") == {"doors": 9}, "who changes it judges it"
    assert called(change, "--no-dimmed", "--hours", "12") == {"dimmed": False, "hours": "12"}


def test_bounds_hold_on_the_command_line_and_wherever_settings_are_made() -> None:
    with pytest.raises(typer.BadParameter, match="less than or equal to 4"):
        called(furnish, "--doors", "5")
    with pytest.raises(SettingsError, match="doors: expected 1 to 4, found 5"):
        Room(5)


def test_a_joining_node_knows_its_limits_before_it_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(joining, "join", lambda *given: seen.extend(given))
    shares = ["--duty-cycle", "30", "--gpu-memory", "40", "--upload-limit", "50000"]
    options = [*shares, "--memory", "9", "--when-idle", "5"]
    assert main(["join", "host:1", "--home", str(tmp_path), *options]) == ExitCode.OK
    node, _, _, wishes = seen
    assert (node.duty_cycle, node.gpu_memory, node.upload_limit) == (30, 40, 50_000)
    assert (wishes.limits.duty_cycle, wishes.limits.others.when_idle, wishes.memory) == (30, 5, 9)
    assert node.corpora == tmp_path / "corpora"
