"""The packages that Lockstep brings, told from strangers of the same names.

Other distributions install packages called `node`, `protocol` or `coordinator` too. Such a one is
found in place of Lockstep's where it comes first on the path, or where pip wrote it over ours. This
module imports nothing but the standard library: it runs before anything that needs them.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
"""The directory that this package lies in: that of a checkout, or where pip puts packages."""

PACKAGES = ("protocol", "border", "coordinator", "node")
"""Packages that come with Lockstep, besides `lockstep`; each has the attribute MARK."""

MARK = "LOCKSTEP"

NODE_EXTRA = {
    "filelock",
    "fsspec",
    "matplotlib",
    "numba",
    "safetensors",
    "tokenizers",
    "torch",
    "transformers",
}
"""Packages of others that come with the extra `node`."""

EXTRAS = {"node": NODE_EXTRA, "datasets": {"datasets", "pyarrow"}, "libp2p": {"hivemind"}}
"""Packages of others by the extra that brings them."""


def how_to_add(extra: str) -> str:
    """How to install the packages of an extra, by what this installation came from. The package is
    on no index.
    """
    if (CHECKOUT / "Makefile").is_file():
        return f"`make setup` in {CHECKOUT}"
    return f"pip install 'WHEEL[{extra}]', with the wheel that Lockstep was installed from"


def foreign_package() -> str:
    """The first of PACKAGES that is missing or not Lockstep's, in words; empty if all are."""
    for name in PACKAGES:
        try:
            own = hasattr(import_module(name), MARK)
        except Exception:  # a stranger may fail in any way
            own = False
        if not own:
            return f"expected Lockstep's own package {name!r}, found {_found(name)}"
    return ""


def _found(name: str) -> str:
    spec = find_spec(name)
    if spec is None:
        return "none"
    place = spec.origin or ", ".join(spec.submodule_search_locations or ())
    return f"another one at {place}"
