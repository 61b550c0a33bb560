"""Trains one cell of the study: payloads to everybody, or rounded sums of them.

Authors are those of the study of local steps. With two bits a value says its sign and which of its
chunk's two scales it has, the mean of the larger half of what is sent or that of the smaller one.
"""

import time
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.exact.dct import transposed
from node.exact.local_steps.aggregate import MovementSum, apply
from node.exact.local_steps.residual import Residual
from protocol.codec.payload import Coefficients, Header, PayloadShape, encode
from protocol.codec.scales import codes_of, scales_of
from protocol.codec.sums import Levels, encode_sums, rounded, sums_of
from protocol.ids import PeerId, RunId
from protocol.limits import CHUNK_ENTRIES
from protocol.sums import movements as counting
from protocol.sums.movements import Movement, code_max
from tests.benchmarks.headline.study import FULL_STEPS, Job, cell
from tests.benchmarks.headline.texts import TextName
from tests.benchmarks.headline.train import TextFixture
from tests.benchmarks.parity.local_steps import LocalStepsAuthors, author_batches, movement

RATE = 0.024

HEADER = Header(RunId("0" * 32), 0, PeerId("0" * 32))


@dataclass(frozen=True, slots=True)
class SumsCell:
    """One training."""

    text: TextName
    authors: int
    top_k: int

    bits: int
    """Of a value: 1 for a sign, 2 for a sign and one of two scales."""

    coarse: int
    """The rounding of the sums: 1 or 4; 0 where every payload goes to everybody."""

    fade: float
    gain: float
    seed: int = 0
    steps: int = FULL_STEPS

    @property
    def job(self) -> Job:
        """The cell on the headline's ground, with a larger batch beyond 16 authors."""
        made = cell("local_steps", RATE, self.seed, self.steps, self.authors)
        made = replace(made, top_k=self.top_k, fade=self.fade, gain=self.gain)
        return _WideJob(self.text, "local_steps", made)


class _WideJob(Job):
    """A job of which each author has a sample in every step."""

    @property
    def task(self) -> Any:
        task = super().task
        return replace(task, batch_samples=max(task.batch_samples, self.cell.authors))


class _Fixture(TextFixture):
    passes_max = 4
    """A step of 32 samples goes through the first text 2.4 times."""


class SummedAuthors(LocalStepsAuthors):
    """The authors of one cell; `bytes_up` and `bytes_down` count a payload and a result a round."""

    def __init__(self, fixture: TextFixture, asked: SumsCell) -> None:
        super().__init__(fixture)
        self._asked, self._at = asked, 0
        self.rounds = self.payload_bytes = self.result_bytes = 0
        self.entropy_bits = 0.0

    @property
    def _shape(self) -> PayloadShape:
        return replace(super()._shape, value_bits=self._asked.bits)

    def round(self) -> None:
        """One round of all authors."""
        fixture, steps = self._fixture, range(self._at, self._at + self._fixture.cell.local_steps)
        self._at = steps.stop
        rate, decay = fixture.rates(steps[0])
        cap = code_max(rate, len(steps), self._asked.top_k)
        movements: list[Movement] = []
        for author, share in enumerate(author_batches(fixture, steps)):
            moved = movement(fixture, self.committed, share, self._optimizers[author], rate)
            self._residuals[author].accumulate(moved)
            sent = _extracted(self._residuals[author], self._asked, cap)
            self.payload_bytes += len(encode(HEADER, sent, self._shape))
            movements.append(Movement(1, cap, sent))
        self.rounds += 1
        summed = self._rounding() if self._asked.coarse else nullcontext()
        with torch.no_grad(), summed, mock.patch.object(counting, "beside_median", _all_count):
            apply(
                fixture.layout,
                self.committed,
                movements,
                decay,
                gain=self._asked.gain,
            )

    def _rounding(self) -> Any:
        """The product's sum with rounded sums in the place of exact ones."""
        exact = MovementSum.sum_strip

        def sum_strip(summed: MovementSum, first: int, strip: Tensor) -> Tensor:
            units = exact(summed, first, strip)
            flat = strip.view(-1, CHUNK_ENTRIES)
            # Places of a strip are transposed; gaps are those of the order that is sent.
            own_order = strip.transpose(1, 2).reshape(-1, CHUNK_ENTRIES).to(torch.int32).numpy()
            ones = np.ones(len(own_order), np.uint8)
            found = rounded(own_order, ones, self._asked.coarse)
            self.result_bytes += len(encode_sums(found))
            self.entropy_bits += entropy_bits(found)
            sums = torch.from_numpy(sums_of(found).astype(np.float32)).view(-1, 64, 64)
            flat.copy_(sums.transpose(1, 2).reshape(-1, CHUNK_ENTRIES))
            return units

        return mock.patch.object(MovementSum, "sum_strip", sum_strip)


def _all_count(codes: Any, *_: Any) -> Any:
    """No bound beside the median: all are honest here."""
    return codes


def _extracted(residual: Residual, asked: SumsCell, cap: int) -> Coefficients:
    """A payload, taken out of the residual."""
    if asked.bits == 1:
        return residual.extract(code_max=cap).coefficients
    indices, previous = residual.backend.extract(residual.entries, asked.top_k, 0.0)
    sizes = previous.abs()
    is_sent = previous != 0
    is_larger = is_sent & (sizes > sizes.median(dim=1, keepdim=True).values)  # at most half
    halves = torch.stack([is_sent & ~is_larger, is_larger])
    means = (sizes * halves).sum(2) / halves.sum(2)
    codes = np.minimum(codes_of(means.numpy()), cap)  # [2, chunks]
    is_larger &= torch.from_numpy(codes[1] > codes[0])[:, None]
    is_sent &= torch.from_numpy(codes[0] >= 0)[:, None]
    is_larger &= is_sent
    scales = np.maximum(codes, 0) * torch.stack([is_sent, is_larger]).any(2).numpy()
    coded = scales_of(scales.astype(np.uint8))
    lower, larger = (torch.from_numpy(row)[:, None] for row in coded)
    said = previous.sign() * torch.where(is_larger, larger, lower) * is_sent
    residual.entries.view(-1, CHUNK_ENTRIES).scatter_add_(1, transposed(indices.long()), -said)
    values = previous.sign() * (1 + is_larger.int())
    return Coefficients(
        counts=is_sent.sum(1).numpy().astype(np.uint16),
        indices=indices.long()[is_sent].numpy().astype(np.uint16),
        values=values[is_sent].to(torch.int16).numpy(),
        scales=np.ascontiguousarray(scales.T).astype(np.uint8),
    )


def entropy_bits(found: Levels) -> float:
    """Bits of all levels, where each place is drawn alone with its chunk's own frequencies."""
    bits, ends = 0.0, np.cumsum(found.counts, dtype=np.int64)
    for row in np.split(found.values, ends[:-1]):
        _, counts = np.unique(row, return_counts=True)
        counts = np.append(counts, CHUNK_ENTRIES - len(row))
        counts = counts[counts > 0]
        bits += float((counts * np.log2(CHUNK_ENTRIES / counts)).sum())
    return bits


def train(asked: SumsCell, corpus: Corpus) -> dict[str, Any]:
    """Train one cell: its settings, validation bits per byte along it, and bytes a round."""
    started_s = time.monotonic()
    fixture = _Fixture(asked.job, corpus)
    authors = SummedAuthors(fixture, asked)
    points = []
    rounds = asked.steps // fixture.cell.local_steps
    for number in range(1, rounds + 1):
        authors.round()
        if number % max(1, rounds // 8) == 0:
            authors.stand_at_committed()
            points.append(
                (number * fixture.cell.local_steps, round(fixture.validation_bits_per_byte(), 5))
            )
    payload = authors.payload_bytes / authors.rounds / asked.authors
    result = authors.result_bytes / authors.rounds
    return asdict(asked) | {
        "corpus": corpus.manifest.digest.hex(),
        "chunks": fixture.layout.chunks,
        "payload_bytes": round(payload),
        "result_bytes": round(result) if asked.coarse else round(payload * (asked.authors - 1)),
        "over_entropy": round(8 * authors.result_bytes / authors.entropy_bits, 3)
        if asked.coarse
        else None,
        "points": points,
        "seconds": round(time.monotonic() - started_s, 1),
    }
