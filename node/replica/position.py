"""The place of a state in the log."""

from dataclasses import dataclass
from typing import Any

from protocol.ids import Digest


@dataclass(frozen=True, slots=True)
class Position:
    """A state's place in the log: it contains every decision before `next_round`, and `head` is the
    digest of the last entry of the chain that it knows.
    """

    next_round: int
    head: Digest
    head_round: int
    voids: frozenset[tuple[int, Digest]] = frozenset()
    """Payloads (round, digest) that the state has passed over because of voids which lie in the
    chain after `head`."""
    void_count: int = 0
    """Void payloads that the state has passed over in all."""


def described_voids(position: Position) -> dict[str, Any]:
    """The JSON values of the voids that a state knows of."""
    ahead = [[round, digest.hex()] for round, digest in sorted(position.voids)]
    return {"ahead": ahead, "count": position.void_count}


def restored_voids(values: dict[str, Any]) -> tuple[frozenset[tuple[int, Digest]], int]:
    """The voids that `described_voids` saved."""
    ahead = ((round, Digest(bytes.fromhex(digest))) for round, digest in values["ahead"])
    return frozenset(ahead), values["count"]
