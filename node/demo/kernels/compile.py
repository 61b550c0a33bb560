"""How functions become kernels, and the types of what they take."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numba as nb
from numba.core import types

MATRIX, CHUNKS, BYTES = types.float32[:, ::1], types.float32[:, :, ::1], types.int8[:, :, ::1]
PLACES, FLAGS = types.int16[:, ::1], types.boolean[::1]
NUMBER, WORD, FLAG = types.float32, types.int64, types.boolean
VOTES = (types.int64[:, ::1], types.uint16[::1], types.int16[::1], types.float32[::1])
"""`vote_sum.StackedContributions`."""

TOOLS = (MATRIX, CHUNKS)
"""A transform's matrix, and SCRATCH chunks to work in."""

SIDE, HALF, QUARTER, ENTRIES = 64, 32, 16, 4096
MAGNITUDE = 0x7FFFFFFF
"""The bits of a float that are its magnitude: whole numbers in the order of the magnitudes."""

_SOURCES = sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:16]
"""numba keeps machine code on disk under a function's name until its own file changes. With this in the name, until any
file here does."""

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(*arguments: Any) -> Any:
    """Compiles a function for arguments of these types at once, or loads what was compiled before."""
    signature = types.void(*map(_together, arguments))

    def compiled(function: Any) -> Any:
        function.__qualname__ += f"_{_SOURCES}"
        try:
            return nb.njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError:  # there is no folder to keep it in
            return nb.njit(signature, **_OPTIONS)(function)

    return compiled


def _together(kind: Any) -> Any:
    """A tuple's types as the type of a tuple."""
    return types.Tuple(tuple(map(_together, kind))) if isinstance(kind, tuple) else kind


inner = nb.njit(**_OPTIONS)
"""A function that kernels call."""
