"""Exit code 0 when the process of this container does its work; else 1, with the reason.

The engine runs this program and shows the reason (`docker inspect`). It runs every few seconds, so
it imports the standard library alone.
"""

import sys
from urllib.error import HTTPError
from urllib.request import urlopen

READY = "http://127.0.0.1:50701/readyz"
"""URL of the readiness page; the admin port is the same in every container."""

TIMEOUT_S = 4
"""Longest wait; shorter than the timeout of the check, so that the reason is printed."""


def reason(url: str = READY) -> str:
    """The reason why the process does not do its work; empty when it does."""
    try:
        with urlopen(url, timeout=TIMEOUT_S):
            return ""
    except HTTPError as error:
        with error:
            return error.read().decode().strip()
    except OSError as error:
        return f"no answer from {url}: {error}"


if __name__ == "__main__":
    sys.exit(reason() or None)
