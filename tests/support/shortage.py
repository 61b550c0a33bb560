"""A process without a free descriptor, for tests."""

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest


@contextlib.contextmanager
def no_descriptors() -> Iterator[Callable[[], None]]:
    """Nothing can be opened in the block, until the function that it gives is called."""
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    newest = os.open(os.devnull, os.O_RDONLY)
    held = [newest]

    def release() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        while held:
            os.close(held.pop())

    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (newest + 8, hard))
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open(os.devnull, os.O_RDONLY))
        yield release
    finally:
        release()
