"""Sizes as people write them: 500MB, 2GB, 1.5TB, or a plain number of bytes."""

import re

from protocol.errors import SettingsError

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)B?", re.IGNORECASE)


def parse_size(text: str, option: str) -> int:
    """A size in bytes; `SettingsError` names the option for a text that is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"{option}: expected a size such as 500MB, 2GB or 0, found {text[:40]!r}"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])
