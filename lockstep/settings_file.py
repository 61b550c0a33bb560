"""Settings of a command: default < file < environment < flag, the later winning.

typer knows the defaults, the LOCKSTEP_* variables and the flags; this module adds the file, a
TOML with one table per command (`lockstep --settings FILE join ...`):

    [join]
    directory = "/var/lib/lockstep"
    device = "cpu"

    [data.prepare]
    out = "/srv/corpus"
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lockstep.toml_file import read_toml
from protocol.errors import SettingsError

Commands = Mapping[str, Any]
"""Option names by command name; for a group of commands, another such mapping."""


def read_settings(path: Path, commands: Commands) -> dict[str, Any]:
    """The file's values by command and option; `SettingsError` names the first unknown one."""
    values = read_toml(path, "settings file", "name another with --settings")
    return _checked(values, commands, str(path))


def _checked(values: Mapping[str, Any], commands: Commands, where: str) -> dict[str, Any]:
    checked: dict[str, Any] = {}
    for key, value in values.items():
        name = key if key in commands else key.replace("-", "_")
        if name not in commands:
            raise SettingsError(
                f"{where}: expected one of {', '.join(sorted(commands))}, found {key!r}"
            )
        inner = commands[name]
        if isinstance(value, Mapping) != isinstance(inner, Mapping):
            expected = "a table" if isinstance(inner, Mapping) else "a value"
            raise SettingsError(f"{where}: {key}: expected {expected}, found {value!r}")
        checked[name] = (
            _checked(value, inner, f"{where}: [{key}]") if isinstance(inner, Mapping) else value
        )
    return checked


def option_names(command: Any) -> dict[str, Any]:
    """Names of the options and arguments of every command below a typer command."""
    if commands := getattr(command, "commands", None):
        return {name: option_names(inner) for name, inner in commands.items()}
    return {parameter.name: None for parameter in command.params}
