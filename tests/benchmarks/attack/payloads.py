"""What attackers make of the payload of an author: its signs turned, its scales made larger."""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from protocol.audit.rule import EARLY_ROUNDS
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


@dataclass(frozen=True, slots=True)
class Shadow:
    """An author that does its work, and turns signs where its payload says most."""

    early: float
    """Share of its places that it turns in the first 32 rounds, in the chunks with the largest
    scales."""

    later: float
    """The same after them."""

    elsewhere: Literal["least", "own", "most"] = "least"
    """The scales that it says in all other chunks: the least, its own, or the largest that count.
    Where it turns signs it says the largest."""

    every: int = 1
    """It does so in every so-manieth round, and sends its honest signs in between."""

    def turns(self, round: int) -> float:
        """Share of the places that it turns in a round."""
        if round % self.every:
            return 0.0
        return self.early if round < EARLY_ROUNDS else self.later

    def made_of(self, sent: Coefficients, code_max: int, round: int) -> Coefficients:
        """What it makes of the payload of its work."""
        share = self.turns(round)
        if not share:
            return sent
        assert sent.scales is not None, "movements have scales"
        order = np.argsort(-sent.scales.astype(np.int64) * (sent.counts > 0), kind="stable")
        before = np.cumsum(sent.counts[order], dtype=np.int64) - sent.counts[order]
        chosen = np.zeros(len(order), bool)
        chosen[order[before < share * sent.counts.sum()]] = True
        largest = boasting(sent, code_max).scales
        assert largest is not None, "a payload with scales boasts with scales"
        others = {"least": np.zeros_like(largest), "own": sent.scales, "most": largest}
        signs = np.repeat(np.where(chosen, -1, 1), sent.counts)
        values = (sent.values * signs).astype(sent.values.dtype)
        scales = np.where(chosen, largest, others[self.elsewhere]).astype(np.uint8)
        return replace(sent, values=values, scales=scales)
