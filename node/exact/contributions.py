"""What the authors of a commit sent, decoded.

What is large is decoded by as many threads as torch uses: each has ranges of chunks, or authors, of
its own. So threads change no number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from node.system.threads import spread
from protocol.codec.payload import Blob, Coefficients, Header, PayloadReader, PayloadShape
from protocol.errors import RemoteProtocolError

DECODE_SPREAD_MIN = 1 << 18
"""Coefficients of all authors from which on several threads decode them: three milliseconds of work
for one, of which several make half a millisecond more. With a quarter of that they gained little.
"""


@dataclass(frozen=True, slots=True, eq=False)
class Contribution:
    """What one author sent, as a commit counts it."""

    weight: int
    """Samples that the commit counts for the author, at least 1."""

    coefficients: Coefficients


def decoded(
    payloads: Sequence[Blob], shape: PayloadShape
) -> list[tuple[Header, Coefficients] | RemoteProtocolError]:
    """The result or the error of `decode` for each payload; large ones by several threads, and in
    parts where there are fewer payloads than threads.
    """
    threads = threads_for(len(payloads) * shape.chunks * shape.top_k, DECODE_SPREAD_MIN)
    parts = -(-threads // max(1, len(payloads)))
    readers: dict[int, PayloadReader] = {}
    refused: dict[int, RemoteProtocolError] = {}

    def begin(number: int) -> None:
        try:
            readers[number] = PayloadReader(payloads[number], shape, parts)
        except RemoteProtocolError as error:
            refused[number] = error

    def read(piece: tuple[int, int]) -> None:
        number, part = piece
        try:
            readers[number].read(part)
        except RemoteProtocolError as error:
            refused[number] = error

    spread(begin, range(len(payloads)), threads)
    spread(read, [(number, part) for number in readers for part in range(parts)], threads)
    return [
        refused.get(number) or (readers[number].header, readers[number].coefficients)
        for number in range(len(payloads))
    ]


def threads_for(values: int, least: int) -> int:
    """How many threads handle this many coefficients of all authors: one if they are too few."""
    return torch.get_num_threads() if values >= least else 1
