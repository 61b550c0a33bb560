"""Standard input, output and error of this program, whatever they are connected to.

    standard error     words beside the work: where they cannot be written, the work goes on
    standard output    the result of a command: where it cannot be written, the command ends; while
                       a long-lived process works it has no result, and the stream is as the other
    a closed stream    becomes one that holds nothing, so that no file of ours takes its number

A letter that the terminal does not have is shown by another, and is no error. What could not be
written is lost but for the last few kilobytes; as soon as there is room the next words appear.

This module imports nothing but the standard library: it works before anything is printed.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast

UNREAD = 141
"""`ExitCode.UNREAD`."""

UNWRITABLE = 6
"""`ExitCode.STORAGE`."""


class Stream:
    """A text stream whose words are lost where they cannot be written. If they are `needed`, the
    process ends by `SystemExit` instead: silently where nobody reads any more, else with a line.
    """

    def __init__(self, inner: TextIO, *, needed: bool) -> None:
        self.needed = needed
        self._inner = inner

    def write(self, text: str) -> int:
        """Writes `text` whole, as text streams do."""
        with self._survived():
            self._inner.write(text)
        return len(text)

    def flush(self) -> None:
        """Hands everything to the system."""
        with self._survived():
            self._inner.flush()

    def let_go(self) -> None:
        """Writes what waits in the buffers, or loses it: Python tries it again at its end."""
        try:
            self._inner.flush()
        except OSError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self._inner.fileno())
            os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # a library that finds it writes there, past this class
            raise AttributeError(name)
        return getattr(self._inner, name)

    @contextmanager
    def _survived(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            if not self.needed:
                return
            self.let_go()
            self.needed = False
            if isinstance(error, BrokenPipeError):
                raise SystemExit(UNREAD) from None
            reason = error.strerror or error
            sys.stderr.write(f"error: standard output cannot be written: {reason}\n")
            raise SystemExit(UNWRITABLE) from None


def install() -> None:
    """Puts the streams of this module in the place of Python's. Call it once, first of all."""
    _open_closed()
    for stream, letters in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors=letters)
    sys.stdout = cast(TextIO, Stream(sys.stdout, needed=True))
    sys.stderr = cast(TextIO, Stream(sys.stderr, needed=False))


@contextmanager
def unneeded_output() -> Iterator[None]:
    """Standard output holds no result while the block runs, and the work goes on without it."""
    stream = sys.stdout
    if not isinstance(stream, Stream):
        yield
        return
    needed, stream.needed = stream.needed, False
    try:
        yield
    finally:
        stream.let_go()
        stream.needed = needed


def _open_closed() -> None:
    """Opens the null device under each standard number that the parent left closed."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # under the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
