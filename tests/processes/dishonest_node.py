"""A node that does everything right but its work: `python -m tests.processes.dishonest_node KIND
OPTIONS` is `lockstep join OPTIONS`.

    noise    sends places and signs by chance
    copies   sends what another author sent in the commit that it applied last, if it has any
    sums     trains as it should, and signs a wrong sum as a summer: all of this kind the same
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from lockstep.cli import main
from node.exact.device_packing import coefficients_of
from node.exact.engine import Extraction
from node.replica.replica import Replica
from node.sums import summer
from protocol.codec.commits import Commit
from protocol.codec.payload import Body, Header, PayloadShape, body_of, decode
from protocol.codec.sums import decode_sums, encode_sums
from protocol.limits import CHUNK_ENTRIES
from protocol.sums.adding import Result, answer_to
from protocol.sums.ranges import ranges_of

_random = torch.Generator().manual_seed(7)


def _noise(extraction: Extraction, shape: PayloadShape) -> Body:
    chunks, top_k = extraction.indices.shape
    order = torch.rand(chunks, CHUNK_ENTRIES, generator=_random).argsort(1)
    indices = order[:, :top_k].sort(1).values.to(torch.int16)
    values = 2 * torch.randint(0, 2, (chunks, top_k), generator=_random, dtype=torch.int16) - 1
    if extraction.scales is None:
        return extraction.backend.pack(indices, values, shape)
    scales = extraction.scales.numpy()
    return body_of(replace(coefficients_of(indices, values), scales=scales), shape)


def make_noise() -> None:
    """From now on this process sends noise."""
    Extraction.body = _noise  # type: ignore[method-assign]


def make_copies() -> None:
    """From now on this process sends copies."""
    apply, encoded, body = Replica.apply, Replica.encoded, Extraction.body
    own, seen = set[bytes](), list[torch.Tensor]()

    def applied(replica: Replica, commit: Commit, payloads: Sequence[bytes]) -> int:
        for payload in payloads:
            if payload and payload not in own:
                found, rows = decode(payload, replica.shape)[1], replica.shape.chunks
                each = (found.indices.astype(np.int16), found.values.astype(np.int16))
                seen[:] = [torch.from_numpy(part.reshape(rows, -1)) for part in each]
        return apply(replica, commit, payloads)

    def sent(replica: Replica, header: Header, extraction: Extraction) -> tuple[bytes, int]:
        payload, count = encoded(replica, header, extraction)
        own.add(payload)
        return payload, count

    def copied(extraction: Extraction, shape: PayloadShape) -> Body:
        return extraction.backend.pack(*seen, shape) if seen else body(extraction, shape)

    Replica.apply, Replica.encoded = applied, sent  # type: ignore[method-assign]
    Extraction.body = copied  # type: ignore[method-assign]


def make_wrong_sums() -> None:
    """From now on the sums of this process are turned."""

    def turned(*asked: Any) -> Result:
        found = answer_to(*asked)
        question, shape = asked[0], asked[2]
        among = ranges_of(shape.chunks, question.ranges)[question.number]
        levels = decode_sums(found.blob, among.chunks)
        return Result(encode_sums(replace(levels, values=-levels.values)), {})

    summer.answer_to = turned  # type: ignore[attr-defined]


if __name__ == "__main__":
    kinds = {"noise": make_noise, "copies": make_copies, "sums": make_wrong_sums}
    kinds[sys.argv[1]]()
    sys.exit(main(["join", *sys.argv[2:]]))
