"""The methods that the headline compares, each with the settings of its trials and the curve that
it follows."""

from dataclasses import dataclass
from typing import Literal

from node.demo.aggregate import Rule


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train the network over the links. All but the first two fields are of Lockstep
    alone."""

    kind: Literal["ddp", "hivemind", "diloco", "lockstep"]
    curve: str
    """What tells its steps to a loss (`curves`)."""
    overlap: Literal[0, 1] = 0
    transport: Literal["grpc", "libp2p"] = "grpc"
    update: Rule = "sign"
    gradients: Literal["unit", "even"] = "unit"
    top_k: int = 32


def _orthogonal(curve: str, overlap: Literal[0, 1] = 0, top_k: int = 32) -> Method:
    """With the update that is the default of a run."""
    return Method("lockstep", curve, overlap, update="orthogonal", gradients="even", top_k=top_k)


BASE = "ddp"
"""What the others are compared with."""

METHODS = {
    BASE: Method("ddp", "adamw"),
    "hivemind": Method("hivemind", "adamw"),
    "diloco": Method("diloco", "diloco"),
    "lockstep-0-grpc": Method("lockstep", "lockstep-0"),
    "lockstep-0-grpc-orthogonal": _orthogonal("lockstep-0-orthogonal"),
    "lockstep-0-grpc-orthogonal-k64": _orthogonal("lockstep-0-orthogonal-k64", top_k=64),
    "lockstep-0-grpc-orthogonal-k128": _orthogonal("lockstep-0-orthogonal-k128", top_k=128),
    "lockstep-0-libp2p": Method("lockstep", "lockstep-0", transport="libp2p"),
    "lockstep-1-grpc": Method("lockstep", "lockstep-1", overlap=1),
    "lockstep-1-grpc-orthogonal-k64": _orthogonal("lockstep-1-orthogonal-k64", overlap=1, top_k=64),
    "lockstep-1-libp2p": Method("lockstep", "lockstep-1", overlap=1, transport="libp2p"),
}
"""By name; in the order of the report."""
