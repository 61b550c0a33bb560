"""The packages that Lockstep brings, told from strangers of the same names.

Other distributions install packages called `node`, `protocol` or `coordinator` too. Such a one is
found in place of Lockstep's where it comes first on the path, or where pip wrote it over ours. This
module imports nothing but the standard library: it runs before anything that needs them.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
"""The directory that this package lies in: that of a checkout, or where pip puts packages."""

PREFIX = Path(sys.prefix)
"""The directory of the environment that runs this."""

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


def installer() -> str:
    """The program that has installed this: "checkout" (its `make setup`), "pipx", "uv" or "pip"."""
    if (CHECKOUT / "Makefile").is_file():
        return "checkout"
    marks = {"pipx": "pipx_metadata.json", "uv": "uv-receipt.toml"}
    return next((name for name, mark in marks.items() if (PREFIX / mark).is_file()), "pip")


def how_to_add(extra: str) -> str:
    """How to install the packages of an extra, by what this installation came from."""
    how = {
        "checkout": f"`make setup` in {CHECKOUT}",
        "pipx": f"pipx install --force 'WHEEL[{extra}]'",
        "uv": f"uv tool install --force 'WHEEL[{extra}]'",
        "pip": f"pip install 'WHEEL[{extra}]'",
    }[installer()]
    return how if "WHEEL" not in how else f"{how}, with the wheel that Lockstep was installed from"


def how_to_upgrade() -> str:
    """How to put another release in the place of this one."""
    if installer() == "checkout":
        return f"bring the newer sources into {CHECKOUT} as you took these, then `make setup` there"
    how = {
        "pipx": "pipx install --force 'WHEEL[node]'",
        "uv": "uv tool install --force 'WHEEL[node]'",
        "pip": "pip install --upgrade 'WHEEL[node]'",
    }[installer()]
    return f"{how}, with the wheel of the newer release; without [node]: no torch, for operators"


def how_to_remove() -> str:
    """How to remove the program itself."""
    return {
        "checkout": f"remove the directory {CHECKOUT}",
        "pipx": "pipx uninstall lockstep-train",
        "uv": "uv tool uninstall lockstep-train",
        "pip": "pip uninstall lockstep-train",
    }[installer()]


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
