"""The front door: the `lockstep` command, clusters on one machine, optimizers for your own loop.

`from lockstep import DeMo, GossipAdam, parameter_groups` needs the `node` extra (torch); importing
`lockstep` alone does not.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from node.exact.optimizer import DeMo, parameter_groups
    from node.gossip_adam.optimizer import GossipAdam

__all__ = ["DISTRIBUTION", "DeMo", "GossipAdam", "__version__", "parameter_groups"]

__version__ = "0.1.0"

DISTRIBUTION = "lockstep-train"
"""Name under which pip installs this package; `lockstep` on PyPI is another project."""


def __getattr__(name: str) -> Any:
    """Loads the names that need torch on first use (PEP 562)."""
    if name in ("DeMo", "parameter_groups"):
        from node.exact import optimizer

        return getattr(optimizer, name)
    if name == "GossipAdam":
        from node.gossip_adam.optimizer import GossipAdam

        return GossipAdam
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
