"""Declarations that several commands have, and that are no field of their settings.

Every option has a help text that begins with its noun, and a default that the help shows; `shown`
words those that depend on something else. Square brackets do not belong into a help text, rich
takes them for markup.
"""

from pathlib import Path
from typing import Annotated

from protocol.option import LINK, PLACES, Option

Url = Annotated[str, LINK]

JsonFile = Annotated[
    str | None,
    Option("FILE", variable=False, help="File for everything that is shown, as JSON; - prints it."),
]

Admin = Annotated[
    str,
    Option(
        "HOST:PORT",
        PLACES,
        help="Address of the admin port (metrics, health, status); port 0 takes a free one.",
    ),
]

FollowParent = Annotated[bool, Option(variable=False, hidden=True)]

ProfilesFile = Annotated[
    Path | None, Option("FILE", shown="the built-in one", help="File of link profiles.")
]


def listed(text: str) -> tuple[str, ...]:
    """The words of a list with commas; spaces around them do not matter."""
    return tuple(filter(None, (part.strip() for part in text.split(","))))
