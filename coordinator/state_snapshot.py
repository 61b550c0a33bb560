"""The whole state of a run as bytes, so that a restart need not fold its history from the first
event.

The events define the state; these bytes are only a shorter way to it. `lockstep coordinator
--check` folds the whole history and compares.
"""

from dataclasses import replace

import msgspec

from coordinator.machine.state.run_state import RunState
from protocol.codec.decoding import UNREADABLE
from protocol.errors import StorageError


def encode_state(state: RunState) -> bytes:
    """The state as MessagePack."""
    return msgspec.msgpack.encode(state)


def decode_state(blob: bytes) -> RunState:
    """The state in these bytes; `StorageError` when they do not decode to one."""
    try:
        return msgspec.msgpack.decode(blob, type=RunState)
    except UNREADABLE as error:
        raise StorageError(
            f"expected a snapshot of a run's state, got bytes that do not decode: {error}"
        ) from None


def durable_part(state: RunState) -> RunState:
    """A copy of the state without leases, time and reason, which heartbeats move: equal for
    machines that took the same durable events.
    """
    copy = decode_state(encode_state(state))
    for member in copy.members.roster.values():
        member.lease_until_ms = 0
    for relay in copy.relays.known.values():
        relay.lease_until_ms = 0
    loss = copy.loss if copy.loss == copy.loss else None  # NaN is not equal to itself
    return replace(copy, loss=loss, last_ms=0, reason="")
