"""The planes of a payload, packed on the device that holds its coefficients.

The bytes are those of `protocol.codec.payload.body_of` (its module has the format). Only the device
knows how many values there are and how long each plane is, and to ask would be to wait for it. So
every plane has room for the most that it can hold and is laid behind the one before it by positions
computed on the device; all bytes are copied to the host once, which cuts them to their length. The
number of operations does not depend on what is packed.
"""

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from protocol.codec.bits import rice_parameter, row_bytes
from protocol.codec.payload import Body, Coefficients, PayloadShape
from protocol.limits import CHUNK_ENTRIES

_BYTE_BITS = 8

_LENGTHS = 3
"""Numbers ahead of the planes, int64: short chunks, values, bytes of all planes."""


def packed(indices: Tensor, values: Tensor, shape: PayloadShape) -> Body:
    """The body of int16 [chunks, k] indices, ascending in each chunk, and values; those with value
    0 are not sent.

    Waits for the device once, to copy.
    """
    found = _packed(indices, values, shape).cpu().numpy()
    lengths = found[: _LENGTHS * np.int64().itemsize]
    short_chunks, count, size = lengths.view(np.int64).tolist()
    return Body(short_chunks, count, found[lengths.size : lengths.size + size].tobytes())


def _packed(indices: Tensor, values: Tensor, shape: PayloadShape) -> Tensor:
    """uint8 [n]: the lengths, the planes, and the room that was not needed."""
    sent = values != 0
    counts = sent.sum(1)
    short = counts < shape.top_k
    short_count, count = short.sum(), counts.sum()
    gaps, rice_bits = _gaps(indices, sent), rice_parameter(shape.top_k)
    magnitudes, negative = values.abs() - 1, values < 0
    planes = _Planes(shape.bytes_max, values.device)
    planes.add(_rows(short.short(), 1), (short_count > 0) * row_bytes(shape.chunks))
    planes.add(_rows(_compact(counts.short(), short), shape.count_bits), _row_bytes(short_count))
    planes.add(_rows(_compact(gaps & (1 << rice_bits) - 1, sent), rice_bits), _row_bytes(count))
    planes.add(*_unary(gaps >> rice_bits, sent, (CHUNK_ENTRIES - shape.top_k) >> rice_bits))
    planes.add(
        _rows(_compact(magnitudes + negative * shape.value_max, sent), shape.value_bits),
        _row_bytes(count),
    )
    lengths = torch.stack((short_count, count, planes.end))
    return torch.cat((lengths.view(torch.uint8), planes.room))


def coefficients_of(indices: Tensor, values: Tensor) -> Coefficients:
    """The coefficients of int16 [chunks, k] indices and values, copied to the host in one piece;
    those with value 0 are not sent. Waits for the device.
    """
    places, kept = torch.stack((indices, values)).cpu().numpy()
    sent = kept != 0
    return Coefficients(
        counts=sent.sum(axis=1, dtype=np.uint16),
        indices=places[sent].astype(np.uint16),
        values=kept[sent],
    )


class _Planes:
    """Bytes laid end to end on a device, in room for the most that there can be."""

    def __init__(self, bytes_max: int, device: torch.device) -> None:
        self._bytes = torch.zeros(
            bytes_max + 1, dtype=torch.uint8, device=device
        )  # the last is for dropped bytes
        self.end = torch.zeros((), dtype=torch.int64, device=device)
        """Bytes so far."""

    def add(self, rows: Tensor, length: Tensor) -> None:
        """Append the first `length` bytes, a number on the device, of each row of uint8
        [width, n].
        """
        width, most = rows.shape
        place = torch.arange(most, device=rows.device)
        places = torch.arange(width, device=rows.device)[:, None] * length + self.end + place
        places.masked_fill_(place >= length, len(self._bytes) - 1)
        self._bytes.scatter_(0, places.view(-1), rows.view(-1))
        self.end = self.end + width * length

    @property
    def room(self) -> Tensor:
        """uint8 [bytes_max]: the planes, and zeros behind them."""
        return self._bytes[:-1]


def _gaps(indices: Tensor, sent: Tensor) -> Tensor:
    """Int16 [chunks, k]: entries between a sent index and the sent one before it in its chunk."""
    latest = indices.masked_fill(~sent, -1).cummax(1).values
    return indices - pad(latest[:, :-1], (1, 0), value=-1) - 1


def _unary(quotients: Tensor, sent: Tensor, zeros_max: int) -> tuple[Tensor, Tensor]:
    """The unary plane, uint8 [1, n], and its length.

    `zeros_max` bounds the zeros in a chunk of k quotients. A chunk of fewer quotients has no more
    bits: for each one that it lacks it has at most one zero more.
    """
    chunks, top_k = sent.shape
    ends = ((quotients.long() + 1) * sent).view(-1).cumsum(0)
    room = row_bytes(chunks * (top_k + zeros_max)) * _BYTE_BITS
    bits = torch.zeros(
        room + 1, dtype=torch.int16, device=sent.device
    )  # the last is for unused slots
    bits.scatter_(0, (ends - 1).masked_fill_(~sent.view(-1), room), 1)
    return _rows(bits[:-1], 1), _row_bytes(ends[-1])


def _compact(numbers: Tensor, kept: Tensor) -> Tensor:
    """The kept ones of numbers of any shape, in order, then zeros: int16 [n]."""
    numbers, kept = numbers.reshape(-1), kept.view(-1)
    places = (kept.cumsum(0) - 1).masked_fill_(~kept, len(kept))
    return numbers.new_zeros(len(kept) + 1).scatter_(0, places, numbers)[:-1]


def _rows(numbers: Tensor, width: int) -> Tensor:
    """uint8 [width, n / 8]: bit by bit of int16 numbers, as `protocol.codec.bits.pack` has them."""
    bit = torch.arange(width, dtype=torch.int16, device=numbers.device)
    place = torch.arange(_BYTE_BITS, dtype=torch.int16, device=numbers.device)
    eights = pad(numbers, (0, -len(numbers) % _BYTE_BITS)).view(-1, _BYTE_BITS)
    bits = eights >> bit[:, None, None] & 1
    return bits.bitwise_left_shift_(place).sum(2, dtype=torch.uint8)


def _row_bytes(bits: Tensor) -> Tensor:
    """`protocol.codec.bits.row_bytes` of a number on the device."""
    return (bits + _BYTE_BITS - 1) // _BYTE_BITS
