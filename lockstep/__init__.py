"""The front door: the `lockstep` command, clusters on one machine, and the DeMo optimizer for your
own loop.

`from lockstep import DeMo` needs the `node` extra (torch); importing `lockstep` alone does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.demo.optimizer import DeMo

__all__ = ["DISTRIBUTION", "DeMo", "__version__"]

__version__ = "0.1.0"

DISTRIBUTION = "lockstep-train"
"""Name under which pip installs this package; `lockstep` on PyPI is another project."""


def __getattr__(name: str) -> Any:
    """Loads the names that need torch on first use (PEP 562)."""
    if name == "DeMo":
        from node.demo.optimizer import DeMo

        return DeMo
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
