"""The work on one chunk after another, compiled for this processor; cpu_kernels.py drives it.

A chunk of 64 x 64 float32 fills a third of a first-level cache. A kernel takes it through all steps
there, so that only what is unsaid, the gradients and the parameters cross the memory, and it never
holds Python's lock. The arithmetic is that of dct.py, top_k.py and plain.py, and tests hold the
kernels to it: the same bits in everything that nodes must agree on.

numba keeps machine code on disk until a file of this folder changes, so the folder holds everything
that kernels are made of, numbers included. constants.py is used without numba, too.
"""
