"""The message over an edge in a round, and the difference that mixing moves, equal at both ends.

Both ends mix with what was *sent*, of themselves too:

    x_i <- x_i + W_ij (theirs - mine)

One end adds what the other subtracts, so the mean is kept whatever rounding did to the messages. An
edge that fails changes nothing at either end: `send` alone leaves no trace, `settle` does.

"float32" and "float16" send whole parameters. "int8" sends the difference to an estimate that both
ends of the edge hold, one byte a number and a scale for each block; the estimate moves by what was
sent. What rounding left out is still in the next difference: error feedback (Koloskova, Stich,
Jaggi: "Decentralized stochastic optimization and gossip algorithms with compressed communication",
1902.00340). Estimates belong to an edge, not to a node: a neighbour that was absent for many rounds
misses nothing, and a graph may change in every round. They begin at the parameters from which all
nodes start, and cost two float32 copies of the parameters for each neighbour ever met.
"""

from typing import Final, Literal, Protocol, get_args

import torch
from torch import Tensor

from protocol.errors import LocalProtocolError, RemoteProtocolError, SettingsError

WireFormat = Literal["float32", "float16", "int8"]

WIRE_FORMATS: Final[tuple[WireFormat, ...]] = get_args(WireFormat)

BLOCK: Final = 256
"""Numbers with one scale: 1.6 % on top of a byte for each."""

_LEVELS: Final = 127
_SCALE_BYTES: Final = 4
_HALF_MAX: Final = 65504.0


class EdgeWire(Protocol):
    """One end of an edge, over all rounds."""

    def send(self, values: Tensor) -> Tensor:
        """The message about this end's parameters, uint8. values: float32 [numbers]."""

    def judge(self, message: Tensor) -> None:
        """`RemoteProtocolError` for bytes of the other end that are no message. To be called before
        this end says that the edge holds: once it does, both ends must mix.
        """

    def settle(self, message: Tensor) -> Tensor:
        """The edge holds: theirs - mine, float32 [numbers]. message: the other end's, judged."""


def message_bytes(wire: WireFormat, numbers: int) -> int:
    """Bytes of a message."""
    match wire:
        case "float32":
            return 4 * numbers
        case "float16":
            return 2 * numbers
        case "int8":
            return numbers + _SCALE_BYTES * _blocks(numbers)


def edge_wire(wire: WireFormat, start: Tensor) -> EdgeWire:
    """One end of an edge that has never held. start: float32 [numbers], the parameters from which
    all nodes started. `SettingsError` for a format that is none.
    """
    if wire not in WIRE_FORMATS:
        raise SettingsError(f"expected a wire of {', '.join(WIRE_FORMATS)}, got {wire!r}")
    return _Differences(start) if wire == "int8" else _Whole(wire, start.numel())


class _Whole:
    """Whole parameters in float32 or float16."""

    def __init__(self, wire: WireFormat, numbers: int) -> None:
        self._wire, self._numbers = wire, numbers
        self._dtype = torch.float32 if wire == "float32" else torch.float16
        self._sent: Tensor | None = None

    def send(self, values: Tensor) -> Tensor:
        if self._dtype == torch.float16:
            values = values.clamp(-_HALF_MAX, _HALF_MAX)
        self._sent = values.to(self._dtype, copy=True)
        return self._sent.view(torch.uint8)

    def judge(self, message: Tensor) -> None:
        _require_bytes(message, message_bytes(self._wire, self._numbers))
        _require_finite(message.view(self._dtype))

    def settle(self, message: Tensor) -> Tensor:
        mine, self._sent = _of_this_round(self._sent).float(), None
        return message.view(self._dtype).float() - mine


class _Differences:
    """int8 differences to the estimates of both ends."""

    def __init__(self, start: Tensor) -> None:
        self._mine = start.detach().to(torch.float32, copy=True).flatten()
        self._theirs = self._mine.clone()
        self._sent: Tensor | None = None

    def send(self, values: Tensor) -> Tensor:
        """The scale of a block is its largest difference / 127; q = round(difference / scale)."""
        numbers = len(self._mine)
        padded = torch.zeros(_blocks(numbers) * BLOCK, device=values.device)
        torch.sub(values, self._mine, out=padded[:numbers])
        blocks = padded.view(-1, BLOCK)
        scales = blocks.abs().amax(1, keepdim=True) / _LEVELS
        levels = (blocks / scales.clamp_min(torch.finfo(torch.float32).tiny)).round_()
        levels = levels.clamp_(-_LEVELS, _LEVELS).to(torch.int8).flatten()[:numbers]
        self._sent = torch.cat([scales.flatten().view(torch.uint8), levels.view(torch.uint8)])
        return self._sent

    def judge(self, message: Tensor) -> None:
        _require_bytes(message, message_bytes("int8", len(self._mine)))
        _require_finite(self._theirs + self._decoded(message))

    def settle(self, message: Tensor) -> Tensor:
        self._mine += self._decoded(_of_this_round(self._sent))
        self._theirs += self._decoded(message)
        self._sent = None
        return self._theirs - self._mine

    def _decoded(self, message: Tensor) -> Tensor:
        numbers = len(self._mine)
        at = _SCALE_BYTES * _blocks(numbers)
        # A copy, as a slice of a received buffer need not be aligned for float32.
        scales = message[:at].clone().view(torch.float32)
        levels = message[at:].view(torch.int8).float()
        return levels.mul_(scales.repeat_interleave(BLOCK)[:numbers])


def _blocks(numbers: int) -> int:
    return -(-numbers // BLOCK)


def _of_this_round(sent: Tensor | None) -> Tensor:
    if sent is None:
        raise LocalProtocolError("expected a message sent before an edge is settled, got none")
    return sent


def _require_bytes(message: Tensor, expected: int) -> None:
    if message.dtype != torch.uint8 or message.shape != (expected,):
        raise RemoteProtocolError(
            f"expected a message of {expected} bytes, got {tuple(message.shape)} of {message.dtype}"
        )


def _require_finite(values: Tensor) -> None:
    if not bool(values.isfinite().all()):
        raise RemoteProtocolError("expected finite parameters from a neighbour, got others")
