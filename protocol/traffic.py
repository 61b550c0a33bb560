"""What of a process's traffic has no owner of its own: nodes, relays and coordinator ask for it
alike."""

from collections.abc import Callable
from typing import TypeAlias

Overhead: TypeAlias = Callable[[int, int], tuple[int, int] | None]
"""Bytes up and down that nobody owns, when others own so many; None: not known on this machine."""


def unknown_overhead(up: int, down: int) -> None:
    """An `Overhead` of whom the kernel does not tell."""
    return
