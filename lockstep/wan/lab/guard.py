"""Removes a laboratory when its owner is gone, even by SIGKILL.

The owner starts the guard, which reads a pipe whose other end only the owner holds. The kernel
closes that end when the owner dies; an owner that ends in order has removed everything before.
"""

import os
import sys
from collections.abc import Sequence

from lockstep.wan.lab.namespaces import Ownership, laboratories, remove
from protocol.errors import UnavailableError


def guard(laboratory: str) -> None:
    """Waits for the end of standard input, then removes the leftovers of a laboratory."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # The kernel closes the files of a dying process in any order: the lock may be released after
    # the pipe.
    ownership = Ownership(laboratory, patient=True)
    remove(laboratories().get(laboratory, []))
    ownership.release()


def main(arguments: Sequence[str]) -> None:
    """Runs the guard's process; the argument is the ID of the laboratory."""
    try:
        guard(arguments[0])
    except UnavailableError as error:
        sys.exit(f"error: {error}; `lockstep wan down` removes leftovers")


if __name__ == "__main__":
    main(sys.argv[1:])
