"""Scales: the size of the signs of one chunk, in one byte.

    code     (exponent + 56) * 4 + (mantissa - 4)      0 to 255: every byte is a scale
    scale    mantissa / 4 * 2^exponent                 mantissa 4 to 7, exponent -56 to 7

Codes ascend with their scales, from 1.4e-17 to 224, each 14 to 25 % above the one before it. With
three significant bits a scale is a whole number of quarters of a power of two, so that weighted
sums of scales are whole numbers, which every processor adds to the same bits.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

Codes = npt.NDArray[np.uint8]
"""Codes of scales."""

EXPONENT_MIN: Final = -56
"""Exponent of the least scale: a movement of 2^-56 changes no float32 parameter above 2^-32."""

EXPONENT_MAX: Final = 7
"""Exponent of the largest scale."""

CODE_MAX: Final = 255

MANTISSA_ONE: Final = 4
"""A mantissa counts in quarters: 4 is one."""


def mantissas(codes: Codes) -> npt.NDArray[np.int32]:
    """4 to 7, of codes of any shape."""
    return MANTISSA_ONE + (codes.astype(np.int32) & MANTISSA_ONE - 1)


def exponents(codes: Codes) -> npt.NDArray[np.int32]:
    """EXPONENT_MIN to EXPONENT_MAX, of codes of any shape."""
    return EXPONENT_MIN + codes.astype(np.int32) // MANTISSA_ONE


def scales_of(codes: Codes) -> npt.NDArray[np.float32]:
    """The scales that codes say, exactly."""
    found: npt.NDArray[np.float32] = np.ldexp(
        mantissas(codes).astype(np.float32), exponents(codes) - 2
    ).astype(np.float32)
    return found


def codes_of(sizes: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    """The code of the nearest scale of each size; -1 for a size below the least scale, and for
    NaN.
    """
    fractions, powers = np.frexp(sizes.astype(np.float64))  # size = fraction * 2^power
    steps = np.rint(fractions * (2 * MANTISSA_ONE))  # 4 to 8, and 8 is the 4 of the next power
    found = (powers - 1 - EXPONENT_MIN) * MANTISSA_ONE + steps - MANTISSA_ONE
    bounded = np.clip(np.where(np.isinf(sizes), CODE_MAX, found), 0, CODE_MAX)
    least = scales_of(np.zeros(1, np.uint8))[0]
    codes: npt.NDArray[np.int16] = np.where(sizes >= least, bounded, -1).astype(np.int16)
    return codes
