"""The methods that are compared, each with the settings of its trials and its curve.

Those of the former default (DeMo with the orthogonalised update, with gradients made even, or with
overlap) are records: no release runs them any more.
"""

from dataclasses import dataclass
from typing import Literal

from protocol.errors import SettingsError
from protocol.planner.sums import AUTHORS_MIN, summed
from protocol.sections.algorithm import AlgorithmSpec, MixingSpec, TopologyName

LOCAL_STEPS = 5
"""Local steps of a round of Lockstep, where it makes any: one sample of each author in each."""

STEPS_UNTIL_MEAN = 1_000_000
"""Steps of a run of gossip Adam: a trial ends before its first mean of all, which takes minutes."""


@dataclass(frozen=True, slots=True)
class Method:
    """One way to train the network over the links. Fields after the first two belong to
    Lockstep.
    """

    kind: Literal["ddp", "hivemind", "diloco", "lockstep"]
    curve: str
    """Name of the curve that gives its steps to a loss."""
    overlap: Literal[0, 1] = 0
    transport: Literal["grpc", "libp2p"] = "grpc"
    update: Literal["sign", "orthogonal"] = "sign"
    gradients: Literal["plain", "even"] = "even"
    top_k: int = 32
    topology: TopologyName | None = None
    """Of gossip Adam, with differences of one byte; None: votes."""
    local_steps: int = 0
    """H: the local steps of a round; 0: a round is one step of DeMo."""
    sums: int = 0
    """Authors from which summers add, with the richer payloads of such a run; 0: never."""

    @property
    def round_steps(self) -> int:
        """Steps from one exchange to the next; only DiLoCo's exchange has a note of its own."""
        return self.local_steps or 1

    @property
    def pace(self) -> str:
        """Name of the methods whose trials are equally long."""
        return "local steps" if self.local_steps else self.kind

    @property
    def is_record(self) -> bool:
        """Whether only earlier releases could run it; its results stay."""
        rule = self.update, self.gradients, self.overlap
        is_demo = self.kind == "lockstep" and not (self.topology or self.local_steps)
        return is_demo and rule != ("sign", "plain", 0)

    def require_runnable(self) -> None:
        """`SettingsError` for a record."""
        if self.is_record:
            raise SettingsError(
                "expected update 'sign', gradients 'plain' and overlap 0 of DeMo, got "
                f"{self.update!r}, {self.gradients!r} and {self.overlap}: no release runs that any "
                "more; its results are in docs/results/data/wan.jsonl"
            )


def _orthogonal(curve: str, overlap: Literal[0, 1] = 0, top_k: int = 32) -> Method:
    """Lockstep with what was the default update of a run."""
    return Method("lockstep", curve, overlap, update="orthogonal", top_k=top_k)


BASE = "ddp"
"""The method that the others are compared with."""

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
    "lockstep-0-grpc-local5-k192": Method(
        "lockstep", "local-steps", top_k=192, local_steps=LOCAL_STEPS
    ),
}
"""Methods by name, in the order of the report."""

DENSE = {"ddp-muon": Method("ddp", "muon")}
"""DDP with Muon for matrices, whose step is that of the base and what its arithmetic takes more: no
trial of its own."""

MIXING = {
    "demo-grpc": Method("lockstep", "", gradients="plain"),
    "gossip-adam-grpc": Method("lockstep", "", overlap=1, topology="one-peer-exponential"),
}
"""DeMo as published, and gossip Adam, which `tests.benchmarks.gossip.beside_demo` sets beside each
other; the report of the methods leaves them out, as they have no curve of this network."""

CROWD = {
    "everybody": METHODS["lockstep-0-grpc-local5-k192"],
    "sums": Method("lockstep", "", local_steps=LOCAL_STEPS, sums=AUTHORS_MIN),
}
"""Local steps with every payload to everybody, and with summers, which
`tests.benchmarks.sums.homes` sets beside each other."""


def algorithm_of(how: Method) -> AlgorithmSpec:
    """The algorithm of a method of Lockstep; `SettingsError` for a record."""
    how.require_runnable()
    if how.topology:
        mixing = MixingSpec(topology=how.topology, exchange="int8", mean_every=STEPS_UNTIL_MEAN)
        return AlgorithmSpec(name="gossip-adam", mixing=mixing)
    if how.local_steps:
        algorithm = AlgorithmSpec(name="local_steps", top_k=how.top_k, local_samples=1)
        return summed(algorithm) if how.sums else algorithm
    return AlgorithmSpec(name="demo", top_k=how.top_k)
