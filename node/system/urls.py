"""Files at a URL, through whichever installed backend of fsspec knows it."""

from typing import Any

from protocol.border.text import clean
from protocol.errors import SettingsError


def file_system(url: str, expected: str) -> tuple[Any, str]:
    """The file system of `url`, and the path within it; a plain path is one on this machine.

    Raises `SettingsError` that begins with `expected` for a URL that no installed backend knows.
    """
    from fsspec.core import url_to_fs

    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"{expected}, found {url[:200]!r}: {clean(str(error))}") from None
    return system, path
