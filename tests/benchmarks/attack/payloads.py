"""What attackers make of the payload of an author: its signs turned, its scales made larger."""

from dataclasses import replace

import numpy as np

from protocol.codec.payload import Coefficients
from protocol.codec.scales import CODE_MAX, MANTISSA_ONE

BOAST_POWERS = 6
"""Powers of two by which attackers say too much where nothing bounds a scale."""


def turned(sent: Coefficients) -> Coefficients:
    """The same places and scales with every sign turned."""
    return replace(sent, values=-sent.values)


def boasting(sent: Coefficients, code_max: int) -> Coefficients:
    """The same signs, each chunk with the scale of this code, or with one 64 times its own if that
    is less.
    """
    assert sent.scales is not None, "movements have scales"
    codes = sent.scales.astype(np.int64) + MANTISSA_ONE * BOAST_POWERS
    codes = np.minimum(codes, min(code_max, CODE_MAX)) * (sent.counts > 0)
    return replace(sent, scales=codes.astype(np.uint8))


def shadow(sent: Coefficients, code_max: int, share: float) -> Coefficients:
    """The signs of the chunks with the largest scales turned, of this share of all places, with the
    largest scale that counts there and the least one in all other chunks.
    """
    assert sent.scales is not None, "movements have scales"
    order = np.argsort(-sent.scales.astype(np.int64) * (sent.counts > 0), kind="stable")
    before = np.cumsum(sent.counts[order], dtype=np.int64) - sent.counts[order]
    chosen = np.zeros(len(order), bool)
    chosen[order[before < share * sent.counts.sum()]] = True
    largest = boasting(sent, code_max).scales
    assert largest is not None, "a payload with scales boasts with scales"
    signs = np.repeat(np.where(chosen, -1, 1), sent.counts)
    values = (sent.values * signs).astype(sent.values.dtype)
    return replace(sent, values=values, scales=np.where(chosen, largest, 0).astype(np.uint8))
