"""What the payloads of a round count for in its step: an audit weighs what the step weighs.

A sign of local steps moves the network by a scale of its chunk, which the step cuts to what the
author's samples could move and to what the others of the round say (`counted_codes`). So who reads
one payload of a round reads the scales of all. Places and signs are dropped at once, and no two
whole payloads are in memory.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lockstep.audit.copies.payloads import Payloads
from node.exact.sign_audit import Weights, acting_weights
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Coefficients
from protocol.ids import Digest, PeerId
from protocol.runfile import AlgorithmSpec
from protocol.schedule import float32_value
from protocol.sums.movements import Movement, code_max_of


async def movements_of(
    commit: Commit, voids: frozenset[Digest], read: Payloads, algorithm: AlgorithmSpec
) -> dict[PeerId, Movement]:
    """By author, the movements of a round; none where all signs weigh alike.

    Raises `UnavailableError`, `StorageError` when a payload is not there.
    """
    if not algorithm.facts.scaled:
        return {}
    return {
        entry.author: bare_movement(commit, entry, coefficients, algorithm)
        async for entry, header, coefficients in read.of_commit(commit, voids)
        if (header.run_id, header.round, header.author)
        == (commit.run_id, commit.round, entry.author)
    }


def weights_of(movements: Mapping[PeerId, Movement], chunks: int) -> dict[PeerId, Weights]:
    """By author, what the signs of its movement weigh, float64 [chunks] or [chunks, 2]."""
    found = acting_weights(list(movements.values()), chunks)
    return dict(zip(movements, found, strict=True))


def bare_movement(
    commit: Commit,
    entry: Entry,
    coefficients: Coefficients,
    algorithm: AlgorithmSpec,
) -> Movement:
    """The movement of an entry as the step bounds it, without places and signs."""
    rate = float32_value(commit.learning_rate_bits)
    most = code_max_of(entry.weight, rate, algorithm)
    no_places, no_signs = np.zeros(0, np.uint16), np.zeros(0, np.int16)
    bare = replace(coefficients, indices=no_places, values=no_signs)
    return Movement(entry.weight, most, bare)
