"""A run's whole state as bytes, so that a restart need not fold its history from the first event.

The state is what the events have made of the machines; these bytes are only a shorter way to the
same state, and `lockstep coordinator --check` folds the whole history to see that they are. What is
listed in `MachineState` is all that `Rounds` changes; a test compares the two, so that a new field cannot
be forgotten."""

from dataclasses import dataclass, fields, replace

import msgspec

from coordinator.machine.digest_verdicts import DigestVerdicts
from coordinator.machine.membership import Member
from coordinator.machine.pacing import Pace
from coordinator.machine.rounds import Rounds
from coordinator.machine.undecided_round import UndecidedRound
from protocol.errors import StorageError
from protocol.ids import Digest, PeerId
from protocol.shuffle import DataOrder


@dataclass(frozen=True, slots=True)
class MachineState:
    """The fields of `Rounds`, and of its member list the roster and the lapsed, that events
    change."""

    roster: dict[PeerId, Member]
    lapsed_ms: dict[PeerId, int]
    verdicts: DigestVerdicts
    pace: Pace
    order: DataOrder
    in_flight: list[UndecidedRound]
    next_round: int
    committed: int
    skipped: int
    decided_round: int
    head_round: int
    head: Digest
    samples_trained: int
    samples_lost: int
    payloads: int
    payload_bytes: int
    loss: float | None
    finished: bool
    concluded: bool
    conclude_by_ms: int
    reason: str
    last_ms: int


OF_MEMBERS = ("roster", "lapsed_ms")
"""Fields of `MachineState` that live in the member list."""


def remember(rounds: Rounds) -> bytes:
    """The state of the machines now."""
    values = {
        field.name: getattr(_owner(rounds, field.name), field.name)
        for field in fields(MachineState)
    }
    return msgspec.msgpack.encode(MachineState(**values))


def recall(rounds: Rounds, state: bytes) -> None:
    """Put fresh machines of the same run into a remembered state; `StorageError` for bytes that are
    none."""
    memory = _decoded(state)
    for field in fields(MachineState):
        setattr(_owner(rounds, field.name), field.name, getattr(memory, field.name))


def durable(state: bytes) -> MachineState:
    """A remembered state without what heartbeats move (leases, the time, the words about now):
    equal for machines that took the same durable events."""
    memory = _decoded(state)
    roster = {peer: replace(member, lease_until_ms=0) for peer, member in memory.roster.items()}
    loss = (
        memory.loss if memory.loss == memory.loss else None
    )  # not a number is not equal to itself
    return replace(memory, roster=roster, loss=loss, last_ms=0, reason="")


def _decoded(state: bytes) -> MachineState:
    try:
        return msgspec.msgpack.decode(state, type=MachineState)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"expected a snapshot of a run's state, got bytes that do not decode: {error}"
        ) from None


def _owner(rounds: Rounds, name: str) -> object:
    return rounds.members if name in OF_MEMBERS else rounds
