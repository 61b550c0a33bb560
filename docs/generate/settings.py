"""The page of the command line: every command, option, variable and default."""

import re
from collections.abc import Iterator
from typing import Any

import typer

from docs.generate.tables import made_from, number, table
from lockstep.cli import app

SETTINGS_HEAD = """\
# Commands and settings

Every command of `lockstep`, with its options. An option's value comes from, the later winning:

1. the default below;
2. the settings file, `lockstep --settings FILE COMMAND`: TOML with one table per command, such as
   `[join]` or `[data.prepare]`, and one line per option, named as on the command line without its
   dashes;
3. the environment variable;
4. the option on the command line.

A relative path counts from the directory in which the command runs, `~` is the user's home.
`lockstep COMMAND --help` prints the same. The exit codes are in
[troubleshooting](../guide/troubleshooting.md#exit-codes).
"""

DEFAULT_IN_HELP = re.compile(r"\s*\\?\[default: (.+?)\\?\]")


def settings() -> str:
    """The page of the command line."""
    root = typer.main.get_command(app)
    text = made_from("the command line of lockstep/cli.py") + SETTINGS_HEAD
    return text + "".join(_command(root, ("lockstep",)))


def _command(command: Any, path: tuple[str, ...]) -> Iterator[str]:
    commands = getattr(command, "commands", {})
    shown = [each for each in command.params if not getattr(each, "hidden", False)]
    if len(path) == 1 or not commands:
        name = " ".join(path)
        yield f"\n## `{name}`\n\n{' '.join((command.help or '').split())}\n\n"
        arguments = [_label(each) for each in shown if each.param_type_name == "argument"]
        usage = " ".join([name, "[OPTIONS]", *arguments, *(["COMMAND ..."] if commands else [])])
        yield f"```\n{usage}\n```\n"
        rows = [_parameter(each) for each in shown]
        if rows:
            yield "\n" + table(("option", "variable", "default", "meaning"), rows)
    for inner in sorted(commands):
        yield from _command(commands[inner], (*path, inner))


def _label(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = str(parameter.metavar or parameter.name.upper())
        return name if parameter.required else f"[{name}]"
    return ", ".join(parameter.opts)


def _parameter(parameter: Any) -> tuple[str, ...]:
    text = parameter.help or {"version": "Print the version."}.get(parameter.name, "")
    told = DEFAULT_IN_HELP.search(text)
    text = DEFAULT_IN_HELP.sub("", text)
    if bounds := _range(parameter):
        text = f"{text} {bounds}"
    if told:
        default = told[1]
    elif parameter.required:
        default = "required"
    elif getattr(parameter, "is_flag", False) or parameter.default in (None, "", ()):
        default = ""
    else:
        default = f"`{parameter.default}`"
    variable = f"`{parameter.envvar}`" if getattr(parameter, "envvar", None) else ""
    return f"`{_label(parameter)}`", variable, default, text


def _range(parameter: Any) -> str:
    least, most = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if least is None:
        return ""
    return (
        f"({number(least)} to {number(most)})"
        if most is not None
        else f"(at least {number(least)})"
    )
