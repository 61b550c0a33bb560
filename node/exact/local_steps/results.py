"""The results of a round's ranges into the parameters, in place of everybody's payloads.

    l     what a result says of a coefficient (`protocol.sums.results`), in place of S / 2^t
    P     <- P * decay - f32(Z * c)        as in `aggregate`; c counts l, so it has 2^t more

A level is at most 91, so nothing is lost before the transform: S' is l itself. What l * 2^t in
place of S would move is moved, to the bit.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from node.exact.chunks import ChunkLayout
from node.exact.dct import transposed
from node.exact.local_steps.aggregate import UNIT_BITS, share_of, step
from protocol.codec.bits import bounds_of
from protocol.codec.commit_sums import AuthorSet
from protocol.codec.scales import EXPONENT_MIN
from protocol.codec.sums import Levels
from protocol.errors import LocalProtocolError
from protocol.limits import CHUNK_ENTRIES
from protocol.sums.movements import range_bits
from protocol.sums.results import within_reach


def apply_results(
    layout: ChunkLayout,
    parameters: Mapping[str, Tensor | None],
    levels: Levels,
    authors: AuthorSet,
    decay: float,
    *,
    top_k: int,
    gain: float = 1.0,
    strip_chunks: int | None = None,
    flat: bool | None = None,
) -> None:
    """Make one step by the `levels` of all chunks, the sum of the movements of `authors`.

    `top_k` and `gain` are the run file's; the rest, and what it raises, is as with
    `aggregate.apply`.
    """
    total = LevelSum(layout, levels, authors, top_k, gain)
    step(layout, parameters, total, decay, strip_chunks=strip_chunks, flat=flat)


class LevelSum:
    """The sums of one commit as its results say them, strip by strip: l and the unit that it counts
    in.
    """

    def __init__(
        self,
        layout: ChunkLayout,
        levels: Levels,
        authors: AuthorSet,
        top_k: int,
        gain: float = 1.0,
    ) -> None:
        """`LocalProtocolError` if they do not fit the layout, or the gain is not exact."""
        if len(levels.counts) != layout.chunks:
            raise LocalProtocolError(
                f"expected levels of {layout.chunks} chunks, got {len(levels.counts)}"
            )
        self._levels, self._authors = levels, authors
        self._share = share_of(authors.moving, authors.weight_sum, gain)
        self._moves = within_reach(levels, authors, top_k)
        self._starts = bounds_of(levels.counts)

    def sum_strip(self, first: int, strip: Tensor) -> Tensor:
        """Fill float32 [n, 64, 64] with l^T of the chunks from `first` on.

        Returns the unit of each chunk, float32 [n, 1, 1]: f32(x / W) * 2^(E + t - r - 21).
        """
        chunks, levels = slice(first, first + len(strip)), self._levels
        here = slice(self._starts[first], self._starts[first + len(strip)])
        rows = np.repeat(np.arange(len(strip)), levels.counts[chunks])
        places = rows * CHUNK_ENTRIES + transposed(levels.indices[here].astype(np.int64))
        said = levels.values[here] * self._moves[chunks][rows]
        strip.zero_()
        changes = torch.from_numpy(said.astype(np.float32)).to(strip.device)
        strip.view(-1).scatter_(0, torch.from_numpy(places).to(strip.device), changes)
        powers = levels.exponents[chunks].astype(np.int32) + levels.steps[chunks]
        powers += EXPONENT_MIN - range_bits(self._authors.weight_sum) - UNIT_BITS
        units = np.ldexp(self._share, powers).astype(np.float32)
        return torch.from_numpy(units).to(strip.device)[:, None, None]
