"""Makes the options of a command from the declarations of its settings (`protocol.option`).

    @commands.command()
    def relay(settings: RelaySettings, *, admin: Annotated[str, Option("HOST:PORT")] = "auto"):

A parameter whose type is a class of settings stands for all fields that are declared in it, and in
the settings within it; any other one is an option of its own. typer sees one flat function.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass, replace
from functools import cache, partial
from inspect import Parameter, Signature
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer

from protocol.option import Option, declared, split

STAYS = "as it is"
"""The default of an option that changes a setting."""


@dataclass(frozen=True)
class Here:
    """How a command takes a class of settings, written beside the parameter's type."""

    only: tuple[str, ...] = ()
    """Options that it has; empty: all."""

    without: tuple[str, ...] = ()
    """Options that it has not."""

    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults that are not those of the fields."""

    changes: type | None = None
    """The class of settings, where the parameter is a mapping of the options that were named, as
    they were given: whoever changes the settings judges them."""

    def has(self, name: str) -> bool:
        """Whether the command has an option."""
        return name not in self.without and (not self.only or name in self.only)

    def within(self, inner: "Here") -> "Here":
        """How it takes settings within these, which say themselves how they are taken."""
        only, without = self.only or inner.only, self.without + inner.without
        return Here(only, without, {**inner.defaults, **self.defaults}, self.changes)


class CommandGroup(typer.Typer):
    """A group of commands that are declared so."""

    def command(self, *given: Any, **named: Any) -> Callable[[Any], Any]:
        register = super().command(*given, **named)
        return lambda function: register(takes(function))


def takes(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as typer calls it: with one parameter for each option."""
    hints = get_type_hints(function, include_extras=True)
    parameters, parts = list[Parameter](), dict[str, _Part]()
    for own in inspect.signature(function).parameters.values():
        settings, here = settings_of(hints[own.name])
        if settings is None:
            kind, option = split(hints[own.name])
            parameters.append(_parameter(own.name, kind, option, own.default))
            parts[own.name] = partial(_read, own.name, kind, option)
        else:
            parameters += _flat(settings, here)
            parts[own.name] = partial(_named if here.changes else _made, settings, here)

    def command(**given: Any) -> Any:
        return function(**{name: part(given) for name, part in parts.items()})

    command.__name__, command.__doc__ = function.__name__, function.__doc__
    command.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {}
    return command


_Part = Callable[[Mapping[str, Any]], Any]
"""Makes an argument of a command from the values of all options."""


def settings_of(hint: Any) -> tuple[Any, Here]:
    """The class of settings that a type names, None for any other, and how it is taken."""
    found = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Here)]
    kind = hint.__origin__ if get_origin(hint) is Annotated else hint
    here = found[0] if found else Here()
    return here.changes or (kind if is_dataclass(kind) else None), here


def _flat(settings: Any, here: Here) -> Iterator[Parameter]:
    """A parameter for each option of a class of settings."""
    helps = _docstrings(settings)
    for each in fields(settings):
        kind, option = declared(settings)[each.name]
        inner, below = settings_of(kind)
        if inner:
            yield from _flat(inner, here.within(below))
        elif option and here.has(each.name):
            option = option if option.help else replace(option, help=helps[each.name])
            default = here.defaults.get(each.name, each.default)
            if here.changes:
                kind, default = (str if option.reads else kind) | None, None
                option = Option(option.metavar, help=option.help, shown=STAYS, variable=False)
            yield _parameter(each.name, kind, option, default)


def _parameter(name: str, kind: Any, option: Option | None, default: Any) -> Parameter:
    """A parameter as typer reads it: its type is one that a command line has."""
    default = Parameter.empty if default is MISSING else default
    if option:
        if option.reads:  # its default is a text too
            kind, default = str, ",".join(default) if isinstance(default, tuple) else default
        if get_origin(kind) is tuple:
            kind, default = list[get_args(kind)[0]] | None, None  # type: ignore[misc]
        kind = Annotated[kind, _typer(name, kind, option)]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)


def _typer(name: str, kind: Any, option: Option) -> Any:
    dashed = "--" + name.replace("_", "-")
    flag = {bool: dashed, bool | None: f"{dashed}/--no-{name.replace('_', '-')}"}.get(kind)
    variable = option.variable
    if variable is True:
        variable = "" if option.argument else f"LOCKSTEP_{name.upper()}"
    words: dict[str, Any] = {
        "help": option.help,
        "metavar": None if flag else option.metavar,
        "envvar": variable or None,
        "rich_help_panel": option.panel or None,
        "show_default": option.shown,
        "min": option.least,
        "max": option.most,
        "hidden": option.hidden,
    }
    if option.argument:
        return typer.Argument(**words)
    return typer.Option(*(option.names or (flag or dashed,)), **words)


def _made(settings: Any, here: Here, given: Mapping[str, Any]) -> Any:
    """The settings with the values of their options."""
    values = {}
    for name, (kind, option) in declared(settings).items():
        inner, below = settings_of(kind)
        if inner:
            values[name] = _made(inner, here.within(below), given)
        elif option and here.has(name):
            values[name] = _read(name, kind, option, given)
    return settings(**values)


def _named(settings: Any, here: Here, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options that were named, and their values as they were given."""
    names = (each.name for each in _flat(settings, here))
    return {name: given[name] for name in names if given[name] is not None}


def _read(name: str, kind: Any, option: Option | None, given: Mapping[str, Any]) -> Any:
    value = given[name]
    if option and option.reads:
        return option.reads(value)
    return tuple(value or ()) if option and get_origin(kind) is tuple else value


@cache
def _docstrings(settings: type) -> dict[str, str]:
    """The text below each field of a class and of those that it extends, on one line."""
    found = {}
    for each in reversed(settings.__mro__[:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(each)))
        body = tree.body[0].body  # type: ignore[attr-defined]
        for one, below in pairwise(body):
            match one, below:
                case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(text))):
                    found[name] = " ".join(text.split())
    return found
