"""DeMo's work on one chunk after another, compiled for this processor: what `cpu_kernels.py` hands to its threads.

A chunk of 64 x 64 float32 fills a third of a first-level cache. A kernel takes it through all steps there, so that only
the momentum, the gradients and the parameters cross the memory, and it never holds Python's lock. The arithmetic is
that of dct.py, orthogonalise.py, top_k.py and aggregate.py, which stay for wherever there is no compiler, and to
which the tests hold the kernels: the same bits in all that nodes must agree on.

numba keeps machine code on disk until a file of this folder changes, so the folder holds all that kernels are made of,
numbers and all.
"""

from node.demo.kernels.chunk import SCRATCH, accumulate, guess, update
from node.demo.kernels.top_k import extract

__all__ = ["SCRATCH", "accumulate", "extract", "guess", "update"]
