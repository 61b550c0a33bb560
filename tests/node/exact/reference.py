"""Section 4 of DESIGN.md in whole numbers, one chunk at a time, to judge the fast paths by."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from node.exact.contributions import Contribution
from protocol.codec.payload import Coefficients

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int64]

T: Integers = np.array(
    [
        [
            round(128 * math.cos(math.pi * (2 * n + 1) * k / 128))
            if k
            else round(128 / math.sqrt(2))
            for n in range(64)
        ]
        for k in range(64)
    ]
)
D = np.array(
    [
        [math.cos(math.pi * (2 * n + 1) * k / 128) / math.sqrt(32) for n in range(64)]
        for k in range(64)
    ]
)
D[0] /= math.sqrt(2)


def ceil64(length: int) -> int:
    while length % 64:
        length += 1
    return length


def is_small(shape: tuple[int, ...]) -> bool:
    if len(shape) < 2:
        return True
    columns = math.prod(shape[1:])
    return ceil64(shape[0]) * ceil64(columns) > 2 * shape[0] * columns


def to_chunks(tensors: Mapping[str, Floats]) -> Floats:
    """The chunks of tensors, [chunks, 64, 64]."""
    chunks = []
    line: list[float] = []
    for name in sorted(tensors):
        tensor = tensors[name]
        if is_small(tensor.shape):
            line.extend(tensor.reshape(-1).tolist())
            continue
        matrix = tensor.reshape(tensor.shape[0], math.prod(tensor.shape[1:]))
        rows, columns = matrix.shape
        padded = np.pad(matrix, ((0, ceil64(rows) - rows), (0, ceil64(columns) - columns)))
        for row in range(0, padded.shape[0], 64):
            for column in range(0, padded.shape[1], 64):
                chunks.append(padded[row : row + 64, column : column + 64])
    while len(line) % 4096:
        line.append(0.0)
    chunks.extend(np.array(line, np.float32).reshape(-1, 64, 64))
    return np.stack(chunks).astype(np.float32)


def from_chunks(
    chunks: npt.NDArray[np.generic], shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, npt.NDArray[np.generic]]:
    tensors = {}
    here = 0
    for name in sorted(shapes):
        shape = shapes[name]
        if is_small(shape):
            continue
        rows, columns = shape[0], math.prod(shape[1:])
        padded = np.zeros((ceil64(rows), ceil64(columns)), chunks.dtype)
        for row in range(0, padded.shape[0], 64):
            for column in range(0, padded.shape[1], 64):
                padded[row : row + 64, column : column + 64] = chunks[here]
                here += 1
        tensors[name] = padded[:rows, :columns].reshape(shape)
    line = chunks[here:].reshape(-1)
    for name in sorted(shapes):
        if is_small(shapes[name]):
            entries = math.prod(shapes[name])
            tensors[name] = line[:entries].reshape(shapes[name])
            line = line[entries:]
    return tensors


def divided(chunk: Integers, shift: int) -> Integers:
    """The chunk over 2^shift, ties to even."""
    whole, rest = np.divmod(chunk, 2**shift)
    twice = 2 * rest
    up = (twice > 2**shift) | ((twice == 2**shift) & (whole % 2 == 1))
    rounded: Integers = whole + up
    return rounded


def halved(chunk: Integers) -> tuple[Integers, int]:
    """The chunk, divided by the least power of two that brings it to 2047, and that power's
    exponent.
    """
    shift = 0
    while np.abs(divided(chunk, shift)).max() > 2047:
        shift += 1
    return divided(chunk, shift), shift


def signs(sums: Integers) -> Integers:
    """U of vote sums [chunks, 64, 64]."""
    return np.stack([np.sign(halved(T.T @ halved(chunk)[0])[0] @ T) for chunk in sums])


def vote_sums(chunks: int, contributions: Sequence[Contribution]) -> Integers:
    sums = np.zeros((chunks, 4096), np.int64)
    for contribution in contributions:
        weight, sent, here = contribution.weight, contribution.coefficients, 0
        for chunk in range(chunks):
            for _ in range(sent.counts[chunk]):
                sums[chunk, sent.indices[here]] += weight * int(sent.values[here])
                here += 1
    return sums.reshape(chunks, 64, 64)


def apply(
    parameters: Mapping[str, Floats],
    contributions: Sequence[Contribution],
    learning_rate: float,
    decay: float,
) -> dict[str, Floats]:
    """The parameters after one step."""
    shapes = {name: tensor.shape for name, tensor in parameters.items()}
    sums = vote_sums(len(to_chunks(parameters)), contributions)
    update = from_chunks(signs(sums).astype(np.float32), shapes)
    stepped = {}
    for name, tensor in parameters.items():
        decayed = (tensor * np.float32(decay)).astype(np.float32)
        stepped[name] = decayed - np.float32(learning_rate) * update[name].astype(np.float32)
    return stepped


class Author:
    """DeMo of one author in double precision, a chunk at a time: its momentum and its votes."""

    def __init__(self, chunks: int) -> None:
        self.momentum = np.zeros((chunks, 64, 64))

    def step(
        self,
        gradients: Mapping[str, Floats],
        *,
        decay: float,
        top_k: int,
        value_bits: int,
    ) -> Coefficients:
        counts, indices, values = [], [], []
        for momentum, chunk in zip(self.momentum, to_chunks(gradients), strict=True):
            momentum[:] = decay * momentum + D @ chunk @ D.T
            flat = momentum.reshape(-1)
            kept = sorted(i for i in np.argsort(-np.abs(flat), kind="stable")[:top_k] if flat[i])
            counts.append(len(kept))
            indices.extend(kept)
            largest = 2 ** (value_bits - 1)
            magnitudes = np.abs(flat[kept])
            sent = np.sign(flat[kept])
            if value_bits > 1 and kept:
                sent *= np.clip(np.round(magnitudes / (magnitudes.max() / largest)), 1, largest)
            values.extend(sent)
            flat[kept] = 0
        return Coefficients(
            np.array(counts, np.uint16), np.array(indices, np.uint16), np.array(values, np.int16)
        )


def random_coefficients(
    rng: np.random.Generator, chunks: int, *, top_k: int, value_max: int, empty: float = 0.2
) -> Coefficients:
    """Coefficients of every count from 0 to top_k; a share of the chunks is empty."""
    counts = rng.integers(0, top_k + 1, chunks) * (rng.random(chunks) >= empty)
    indices = [np.sort(rng.choice(4096, count, replace=False)) for count in counts]
    total = int(counts.sum())
    values = rng.integers(1, value_max + 1, total) * rng.choice([-1, 1], total)
    return Coefficients(
        counts.astype(np.uint16),
        np.concatenate([*indices, []]).astype(np.uint16),
        values.astype(np.int16),
    )
