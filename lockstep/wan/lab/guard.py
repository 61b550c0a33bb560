"""Clears a laboratory away when its owner is gone, even by SIGKILL.

The guard is started by the owner and reads a pipe of which only the owner holds the other end. The
kernel closes it when the owner dies; an owner that ends in order has removed everything before.
"""

import os
import sys
from collections.abc import Sequence

from lockstep.wan.lab.namespaces import Ownership, laboratories, remove
from protocol.errors import UnavailableError


def guard(laboratory: str) -> None:
    """Waits for the end of standard input, then removes what is left of a laboratory."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    # The kernel closes what a dying process had open in any order: the pipe ends, and the lock may
    # come free later.
    ownership = Ownership(laboratory, patient=True)
    remove(laboratories().get(laboratory, []))
    ownership.release()


def main(arguments: Sequence[str]) -> None:
    """The guard's process: ID of the laboratory."""
    try:
        guard(arguments[0])
    except UnavailableError as error:
        sys.exit(f"error: {error}; try `lockstep wan down`")


if __name__ == "__main__":
    main(sys.argv[1:])
