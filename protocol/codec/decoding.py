"""The errors of msgspec for bytes that are not what was expected."""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All of them. Its own class does not hold text that is no UTF-8, as a flipped bit makes it, nor
nesting without an end.
"""
