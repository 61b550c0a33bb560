"""The declaration of a setting: what a command line needs to know of it, beside its field.

    upload_limit: Annotated[int, Option("BYTES", USE, least=0)] = 0
    \"\"\"Limit on the upload to all peers together, in bytes per second; 0: none.\"\"\"

The rest is the field's own: its name, type, default and docstring, which begins with its noun. The
command's option, its help, its variable, its line of a settings file and of the reference are made
of it (`lockstep.declared`); the bounds hold wherever the settings are made.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from protocol.errors import SettingsError

USE = "What it may use"

NETWORK = "Network"

DATA = "Training data"

PLACES = "Where things are kept and shown"


@dataclass(frozen=True, slots=True)
class Option:
    """One option or argument of a command."""

    metavar: str = ""
    """Word for its value; a flag has none."""

    panel: str = ""
    """Part of the help that it stands in; empty: the first."""

    help: str = ""
    """What it is, for a parameter, which has no docstring."""

    shown: str | bool = True
    """Words for a default that depends on something else; False: it is not shown."""

    least: float | None = None

    most: float | None = None

    names: tuple[str, ...] = ()
    """Names on the command line; empty: the field's."""

    variable: str | bool = True
    """Environment variable; True: LOCKSTEP_ and the name of an option, False: none."""

    argument: bool = False
    """Whether it stands on the command line without a name."""

    reads: Callable[[str], Any] | None = None
    """Makes the value of a text, or raises `SettingsError`."""

    hidden: bool = False

    @property
    def bounds(self) -> str:
        """The bounds in words."""
        return f"{self.least} to {self.most}" if self.most is not None else f"at least {self.least}"


LINK = Option(
    "URL",
    help="Link of the run, lockstep://HOST:PORT/RUN#KEY in quotes, or HOST:PORT.",
    variable="LOCKSTEP_COORDINATOR",
    argument=True,
)
"""The run that a command is about."""

RESTART_FROM = Option(
    "CHECKPOINT",
    PLACES,
    shown=False,
    variable=False,
    help="Checkpoint, or snapshot file, from which a run goes on whose newest state is lost.",
)


@cache
def declared(settings: type) -> dict[str, tuple[Any, Option | None]]:
    """The type of each field of a class of settings, and its declaration if it has one."""
    hints = get_type_hints(settings, include_extras=True)
    return {each.name: split(hints[each.name]) for each in fields(settings)}


def split(hint: Any) -> tuple[Any, Option | None]:
    """A type, and the declaration that is written beside it."""
    found = [each for each in getattr(hint, "__metadata__", ()) if isinstance(each, Option)]
    return (hint.__origin__, found[0]) if found else (hint, None)


def check_bounds(settings: Any) -> None:
    """`SettingsError` for the first value that is out of its bounds."""
    for name, value, option in _bounded(settings):
        above = option.least is not None and value < option.least
        if above or (option.most is not None and value > option.most):
            raise SettingsError(f"{name}: expected {option.bounds}, found {value}")


def _bounded(settings: Any) -> Iterator[tuple[str, Any, Option]]:
    kind: Any = type(settings)
    for name, (_, option) in declared(kind).items():
        if option and (value := getattr(settings, name)) is not None:
            yield name, value, option
