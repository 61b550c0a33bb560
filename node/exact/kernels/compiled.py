"""The module that cpu_kernels.py loads: its import compiles the kernels, or loads machine code."""

from node.exact.kernels.chunk import SCRATCH, accumulate, update
from node.exact.kernels.top_k import extract

__all__ = ["SCRATCH", "accumulate", "extract", "update"]
