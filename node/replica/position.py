"""The place of a state in the log, and the rounds that were announced beyond it."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from node.demo.engine import Engine, Extraction
from protocol import wire_pb2 as wire
from protocol.ids import Digest


@dataclass(frozen=True, slots=True, eq=False)
class Pending:
    """A round that this node has announced and nobody has decided yet."""

    announcement: wire.NodeMessage
    extraction: Extraction | None
    """The coefficients that the payload took from the momentum; None without a payload."""

    @property
    def round(self) -> int:
        """The round announced."""
        return int(self.announcement.announced.round)

    @property
    def digest(self) -> bytes:
        """The payload's digest; empty when there was none."""
        return bytes(self.announcement.announced.digest)


@dataclass(frozen=True, slots=True)
class Position:
    """A state's place in the log: it contains every decision before `next_round`, and `head` is the
    digest of the last entry of the chain that it knows. `pending` was announced beyond it, oldest
    first, and is taken out of the momentum.
    """

    next_round: int
    head: Digest
    head_round: int
    pending: tuple[Pending, ...] = ()
    unsaved_rounds: int = 0
    """Rounds that may be trained beyond this state before the next one is saved; 0 in that of a
    node that ended."""
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


def pending_tensors(pending: Pending) -> dict[str, Tensor]:
    """The tensors of an undecided round, by the names under which they are saved."""
    extraction = pending.extraction
    return (
        {f"pending/{pending.round}/{name}": each for name, each in extraction.tensors().items()}
        if extraction
        else {}
    )


def described(pending: Pending, engine: Engine) -> dict[str, Any]:
    """The JSON values of an undecided round."""
    values: dict[str, Any] = {
        "announcement": pending.announcement.SerializeToString().hex(),
    }
    if pending.extraction:
        values["age"] = engine.age(pending.extraction)
    return values


def restored(values: dict[str, Any], tensors: dict[str, Tensor], engine: Engine) -> Pending:
    """The undecided round that `described` and `pending_tensors` saved."""
    announcement = wire.NodeMessage.FromString(bytes.fromhex(values["announcement"]))
    place = f"pending/{announcement.announced.round}/"
    own = {
        name.removeprefix(place): tensor
        for name, tensor in tensors.items()
        if name.startswith(place)
    }
    extraction = None
    if "age" in values:
        accumulations, changes = values["age"]
        extraction = engine.revive(own, (accumulations, changes))
    return Pending(announcement, extraction)
