"""The numbers that the plain way and the compiled kernels share.

They stand in this folder, which needs no compiler for them, because numba keeps machine code until
a file of this folder changes.
"""

OPERAND_MAX = 2047
"""Largest |S'| and |Y'| in `dct`: the integers that fit 11 significant bits, TF32's."""

# ---- the orthogonal update: orthogonalise.py proves the bounds

ITERATIONS = 3
"""Newton-Schulz iterations. Two trained a little worse: docs/results/parity.md."""

ENTRY_MAX, STEP_MAX = 511, 500
"""Largest |X| and |A|, and largest |B|."""

ONE_BITS = 8
"""X and A count in 2^-8, B in 2^-7."""

A, B, C = 441, -306, 130
"""Muon's 3.4445, -4.7750 and 2.0315: a in 1/128, b and c in 1/64."""

UPDATE_SCALE = 2.0**-24
"""U / Z before the shift: T^T . T is 2^19 times the orthonormal inverse, X counts in 2^-8, and U
is to have a root mean square of about 1, which is 8 / 8."""

# ---- the guess: plain.py

SENT_WEIGHT, STAYED_WEIGHT = 200.0, 40.0
"""Votes of a coefficient that was sent, and of the root mean square of a chunk's remaining
coefficients."""

SIZE_LEAST = 2.0**-60
"""Least root mean square that remaining coefficients are divided by: its square is far from the
least float, and no quotient is infinite. Smaller chunks have proportionally fewer votes."""

STAYED_MAX = 4096.0
"""Bound on the votes of a remaining entry: none of 4096 exceeds 64 root mean squares, and 40 * 64 =
2560. An entry that is NaN or infinite has no votes."""

ORTHOGONAL_GUESS = 1.25
"""Factor of a guess with the rule "orthogonal": sent and remaining coefficients share its
directions, so that each has fewer of them than it would alone."""

GUESS_ONE, GUESS_MAX = 16, 127
"""A guess is kept in sixteenths, in a byte."""
