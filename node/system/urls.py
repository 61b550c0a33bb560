"""Files at a URL, through whichever installed backend of fsspec knows it."""

from typing import Any

from protocol.addresses import has_login
from protocol.border.text import clean
from protocol.errors import SettingsError


def file_system(url: str, expected: str) -> tuple[Any, str]:
    """The file system of `url`, and the path within it; a plain path is one on this machine.

    Raises `SettingsError` that begins with `expected` for a URL that no installed backend knows,
    and for one with a password in it: URLs are logged and shown.
    """
    from fsspec.core import url_to_fs

    if has_login(url):
        raise SettingsError(
            f"{expected}, without a name and password in it: give them in the environment, as the "
            "backend reads them (AWS_ACCESS_KEY_ID, HF_TOKEN and so on)"
        )
    try:
        system, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise SettingsError(f"{expected}, found {url[:200]!r}: {clean(str(error))}") from None
    return system, path
