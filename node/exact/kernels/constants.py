"""The numbers that the plain way and the compiled kernels share.

They stand in this folder, which needs no compiler for them, because numba keeps machine code until
a file of this folder changes.
"""

OPERAND_MAX = 2047
"""Largest |S'| and |Y'| in `dct`: the integers that fit 11 significant bits, TF32's."""
