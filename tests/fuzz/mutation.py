"""Mutations of bytes: what a stranger who knows the format would try, and chance."""

import random
from collections.abc import Callable, Sequence

BYTES_MAX = 4096
"""Bytes of a mutant at most: the forms are judged, not the bounds on sizes, which have tests."""

CHANGES_MAX = 4
"""Mutations that one mutant is made by at most."""

NUMBERS = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
"""Values at which lengths, counts and signs change their meaning."""

Mutation = Callable[[bytearray, random.Random, Sequence[bytes]], None]


def flip(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """One bit."""
    blob[chance.randrange(len(blob))] ^= 1 << chance.randrange(8)


def byte(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """One byte."""
    blob[chance.randrange(len(blob))] = chance.randrange(256)


def number(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """A number in place of as many bytes, in either order of bytes."""
    width = chance.choice((1, 2, 4, 8))
    value = chance.choice(NUMBERS) % (1 << 8 * width)
    at = chance.randrange(len(blob))
    blob[at : at + width] = value.to_bytes(width, chance.choice(("big", "little")))


def step(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """A byte that is a little more or less."""
    at = chance.randrange(len(blob))
    blob[at] = (blob[at] + chance.choice((-2, -1, 1, 2))) % 256


def cut(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """The end, or a piece in the middle, is missing."""
    at = chance.randrange(len(blob))
    end = len(blob) if chance.random() < 0.3 else at + 1 + chance.randrange(16)
    del blob[at:end]


def insert(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """New bytes, or a piece of it once more."""
    at, length = chance.randrange(len(blob) + 1), 1 + chance.randrange(16)
    begin = chance.randrange(len(blob) + 1)
    piece = blob[begin : begin + length] if chance.random() < 0.5 else chance.randbytes(length)
    blob[at:at] = piece


def splice(blob: bytearray, chance: random.Random, pool: Sequence[bytes]) -> None:
    """A beginning of one and an end of another."""
    other = chance.choice(pool)
    blob[chance.randrange(len(blob) + 1) :] = other[chance.randrange(len(other) + 1) :]


MUTATIONS: tuple[Mutation, ...] = (flip, byte, number, step, cut, insert, splice)


def mutant(pool: Sequence[bytes], chance: random.Random) -> bytes:
    """A mutant of one of the inputs in `pool`, of which there is at least one."""
    blob = bytearray(chance.choice(pool))
    for _ in range(1 + chance.randrange(CHANGES_MAX)):
        if not blob:
            blob += chance.randbytes(1 + chance.randrange(32))
        chance.choice(MUTATIONS)(blob, chance, pool)
    return bytes(blob[:BYTES_MAX])
