"""The module that cpu_kernels.py loads: its import compiles the kernels, or loads machine code."""

from node.demo.kernels.chunk import SCRATCH, accumulate, update
from node.demo.kernels.top_k import extract

__all__ = ["SCRATCH", "accumulate", "extract", "update"]
