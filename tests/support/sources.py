"""The modules of the programs, parsed once in a process."""

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("protocol", "border", "coordinator", "node", "lockstep")

SOURCES = [
    path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
    if not path.stem.endswith(("_pb2", "_pb2_grpc"))
]
"""Those that were written, and not generated."""


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Each module's path in the repository, and its syntax tree."""
    return {str(path.relative_to(ROOT)): ast.parse(path.read_text("utf-8")) for path in SOURCES}
