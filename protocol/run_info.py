"""A run as its coordinator describes it to a node."""

from dataclasses import dataclass

from protocol.ids import RunId
from protocol.runfile import RunSpec


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The facts of a run that a node knows before it joins."""

    spec: RunSpec
    run_id: RunId
    """Hash of the run file and the coordinator's key."""
    coordinator_key: bytes
    """Public key that signs the commits."""
