"""Names of a cluster's processes: each has a directory of its name, and each fault a target."""

COORDINATOR = "coordinator"
RELAY = "relay"


def node_name(number: int) -> str:
    """Name of a node process; numbers begin at 0."""
    return f"node-{number}"
