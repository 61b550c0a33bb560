"""A shortage: this machine, or this process, has no descriptor or no memory of the kernel left.

It passes when others close their files. So the work that meets it is done again, after pauses that
grow, and no process ends of it. Pure: the caller brings sleep and log.
"""

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

from protocol.errors import ShortageError

FIRST_PAUSE_S = 0.1
"""Seconds between the first failure and the next try; each further pause is twice as long."""

LONGEST_PAUSE_S = 5.0
"""Seconds between two tries at most."""

_CODES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})

_Result = TypeVar("_Result")


@contextmanager
def shortages(doing: str) -> Iterator[None]:
    """Translates an `OSError` of a shortage into a `ShortageError`, "cannot `doing`: ..."; others
    pass.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in _CODES:
            raise
        raise ShortageError(
            f"cannot {doing}: {error.strerror}; this machine is short of descriptors or memory "
            "for now"
        ) from error


class Patience:
    """Does work again until no shortage stops it. Belongs to all threads of a process.

    `sleep(seconds)` blocks; `say(reason)` is called once for as long as any work waits.
    """

    def __init__(self, sleep: Callable[[float], object], say: Callable[[str], object]) -> None:
        self._sleep, self._say = sleep, say
        self._waiting: set[object] = set()

    def outlast(self, work: Callable[[], _Result]) -> _Result:
        """The result of `work`, which leaves nothing half done when it raises `ShortageError`."""
        try:
            return work()
        except ShortageError as error:
            if not self._waiting:
                self._say(str(error))
        waiting = object()
        self._waiting.add(waiting)
        try:
            return self._again(work)
        finally:
            self._waiting.discard(waiting)

    def _again(self, work: Callable[[], _Result]) -> _Result:
        pause_s = FIRST_PAUSE_S
        while True:
            self._sleep(pause_s)
            with suppress(ShortageError):
                return work()
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
