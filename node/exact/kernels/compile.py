"""How functions become kernels, and the types of their arguments."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import numba as nb
from numba.core import types

MATRIX, CHUNKS = types.float32[:, ::1], types.float32[:, :, ::1]
PLACES, FLAGS = types.int16[:, ::1], types.boolean[::1]
NUMBER, WORD = types.float32, types.int64
VOTES = (types.int64[:, ::1], types.uint16[::1], types.int16[::1], types.float32[::1])
"""Types of `votes.StackedContributions`."""

TOOLS = (MATRIX, CHUNKS)
"""Types of a transform's matrix, and of SCRATCH chunks to work in."""

SIDE, HALF, QUARTER, ENTRIES = 64, 32, 16, 4096
"""Sides and entries of a chunk."""

MAGNITUDE = 0x7FFFFFFF
"""Mask of the bits of a float that are its magnitude: as whole numbers they are in its order."""

_SOURCES = sha256(
    b"".join(path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.py")))
).hexdigest()[:16]
"""Digest of this folder's files. numba keeps machine code on disk under a function's name until the
file of that function changes; with this in the name, until any file of the folder changes."""

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy"}


def kernel(*arguments: Any) -> Any:
    """Compiles a function for arguments of these types at once, or loads its machine code."""
    signature = types.void(*map(_together, arguments))

    def compiled(function: Any) -> Any:
        function.__qualname__ += f"_{_SOURCES}"
        try:
            return nb.njit(signature, cache=True, **_OPTIONS)(function)
        except RuntimeError:  # there is no folder to keep the machine code in
            return nb.njit(signature, **_OPTIONS)(function)

    return compiled


def _together(kind: Any) -> Any:
    """A tuple's types as the type of a tuple."""
    return types.Tuple(tuple(map(_together, kind))) if isinstance(kind, tuple) else kind


inner = nb.njit(**_OPTIONS)
"""Decorator of functions that kernels call."""
