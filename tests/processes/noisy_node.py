"""A node that does everything right but its work: `python -m tests.processes.noisy_node OPTIONS` is
`lockstep join OPTIONS`, and sends places and signs by chance.
"""

import sys

import torch

from lockstep.cli import main
from node.demo.engine import Extraction
from protocol.codec.payload import Body, PayloadShape
from protocol.limits import CHUNK_ENTRIES

_random = torch.Generator().manual_seed(7)


def _noise(extraction: Extraction, shape: PayloadShape) -> Body:
    chunks, top_k = extraction.indices.shape
    order = torch.rand(chunks, CHUNK_ENTRIES, generator=_random).argsort(1)
    indices = order[:, :top_k].sort(1).values.to(torch.int16)
    values = 2 * torch.randint(0, 2, (chunks, top_k), generator=_random, dtype=torch.int16) - 1
    return extraction.backend.pack(indices, values, shape)


if __name__ == "__main__":
    Extraction.body = _noise  # type: ignore[method-assign]
    sys.exit(main(["join", *sys.argv[1:]]))
