"""What authors send: momenta at the places of a payload, as votes or with magnitudes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import Tensor

from node.demo.engine import Engine, Extraction
from protocol.codec.payload import Coefficients
from protocol.limits import CHUNK_ENTRIES
from tests.benchmarks.attack.cases import BOAST
from tests.benchmarks.parity.task import Fixture

Gradients = dict[str, Tensor | None]

_HONEST_MAX = 127
"""The largest honest magnitude of a chunk, in the units that magnitudes are counted in."""

_VALUE_MAX = 32_767


@dataclass(frozen=True, slots=True, eq=False)
class Payload:
    """The coefficients of one author; n is the sum of `counts`."""

    counts: npt.NDArray[np.uint16]
    """[chunks]"""
    indices: npt.NDArray[np.uint16]
    """[n], ascending in a chunk."""
    momenta: npt.NDArray[np.float32]
    """[n]: the momentum there, none of them zero."""

    @property
    def votes(self) -> Coefficients:
        """As the engine sends it: a sign for each place."""
        return Coefficients(self.counts, self.indices, np.sign(self.momenta).astype(np.int16))

    def times(self, factor: float) -> "Payload":
        """The same places with other momenta."""
        return replace(self, momenta=(self.momenta * np.float32(factor)).astype(np.float32))


class Author:
    """One momentum."""

    def __init__(self, fixture: Fixture) -> None:
        self._engine = Engine(fixture.layout, fixture.cell.demo, "cpu")

    def payload(self, gradients: Gradients) -> Payload:
        """The payload of a round with these gradients."""
        self._engine.accumulate(gradients)
        return payload_of(self._engine.extract())


def payload_of(extraction: Extraction) -> Payload:
    """What an engine took out of its momentum."""
    sent = extraction.values.numpy() != 0
    return Payload(
        sent.sum(axis=1, dtype=np.uint16),
        extraction.indices.numpy()[sent].astype(np.uint16),
        extraction.previous.numpy()[sent],
    )


def noise(like: Payload, random: np.random.Generator) -> Payload:
    """As many places as another payload has, with its momenta in any order, and any signs."""
    places = [np.sort(random.choice(CHUNK_ENTRIES, count, replace=False)) for count in like.counts]
    signs = random.choice(np.array([-1, 1], np.float32), len(like.momenta))
    indices = np.concatenate(places).astype(np.uint16)
    return Payload(like.counts, indices, random.permutation(np.abs(like.momenta)) * signs)


def with_magnitudes(honest: Sequence[Payload], hostile: Sequence[Payload]) -> list[Coefficients]:
    """The payloads of both with their magnitudes, in whole numbers of one unit for each chunk: the
    largest honest one is 127. So the exact step adds what the senders' floats would.
    """
    most = np.zeros(len(honest[0].counts), np.float32)
    for payload in honest:
        np.maximum.at(most, _chunks(payload), np.abs(payload.momenta))
    unit = np.maximum(most, np.finfo(np.float32).tiny) / _HONEST_MAX
    found = []
    for payload in (*honest, *hostile):
        counted = np.rint(payload.momenta / unit[_chunks(payload)])
        values = np.clip(counted, -_VALUE_MAX, _VALUE_MAX).astype(np.int16)
        found.append(Coefficients(payload.counts, payload.indices, values))
    return found


def boasting(payload: Payload) -> Payload:
    """The same, said to be a hundred times larger."""
    return payload.times(BOAST)


def _chunks(payload: Payload) -> npt.NDArray[np.int64]:
    """[n]: the chunk of each coefficient."""
    return np.repeat(np.arange(len(payload.counts)), payload.counts)
