"""TOML files that a person writes, read with the way out in each error."""

import tomllib
from pathlib import Path
from typing import Any

from protocol.errors import SettingsError


def read_toml(path: Path, what: str, cure: str) -> dict[str, Any]:
    """The values of a file; `what` names its kind and `cure` what to do where there is none.

    Raises `SettingsError` for a file that cannot be read, is no UTF-8, or no TOML.
    """
    try:
        blob = path.read_bytes()
        if b"\0" in blob[:4]:
            raise SettingsError(f"{path}: expected UTF-8, found UTF-16: save it as UTF-8")
        return tomllib.loads(blob.decode("utf-8-sig"))  # editors on Windows begin with a mark
    except OSError as error:
        raise SettingsError(f"cannot read {what} {path}: {error.strerror}; {cure}") from None
    except UnicodeDecodeError:
        raise SettingsError(
            f"{path}: expected UTF-8, found another encoding: save it as UTF-8"
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from None
