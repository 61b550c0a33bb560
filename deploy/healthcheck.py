"""Exit code 0 when the process of this container does its work; else 1, with its own reason in
words.

The engine runs it and shows the reason (`docker inspect`). Standard library only: it runs every few
seconds.
"""

import sys
from urllib.error import HTTPError
from urllib.request import urlopen

READY = "http://127.0.0.1:50701/readyz"
"""In every container the admin port is this one."""

TIMEOUT_S = 4
"""Below the timeout of the check itself, so that the reason is ours."""


def reason(url: str = READY) -> str:
    """Why the process does not do its work; empty when it does."""
    try:
        with urlopen(url, timeout=TIMEOUT_S):
            return ""
    except HTTPError as error:
        return error.read().decode().strip()
    except OSError as error:
        return f"no answer from {url}: {error}"


if __name__ == "__main__":
    sys.exit(reason() or None)
