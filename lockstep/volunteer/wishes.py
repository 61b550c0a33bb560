"""What the owner of a machine chooses besides the settings of the node itself."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from lockstep.volunteer.limits import Limits
from protocol.option import PLACES, USE, Option, check_bounds


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Where a node keeps what it has."""

    home: Annotated[Path, Option("DIR", PLACES)] = Path("~/.lockstep")
    """Directory of this computer's identity, with a directory for each run."""

    directory: Annotated[Path | None, Option("DIR", PLACES, shown="HOME/runs/RUN")] = None
    """Directory of one run and an identity of its own, in place of the home's."""

    @property
    def path(self) -> Path:
        """The directory of the identity."""
        return (self.directory or self.home).expanduser()

    @property
    def only(self) -> bool:
        """Whether it is for one run."""
        return self.directory is not None


@dataclass(frozen=True, slots=True)
class Wishes:
    """How much of the machine a run gets, and when."""

    limits: Limits = field(default_factory=Limits)

    nice: Annotated[int, Option("N", USE, least=0, most=19)] = 10
    """Niceness: other programs go first; 0 competes as an equal."""

    memory: Annotated[int, Option("BYTES", USE, least=0)] = 0
    """Memory that the node may take, Python and torch (0.5 GB) included; a run that needs more is
    refused. 0: the machine's."""

    disk: Annotated[int, Option("BYTES", USE, least=0)] = 0
    """Disk that the run may take; a run that may need more is refused. 0: what is free."""

    yes: Annotated[bool, Option(names=("--yes", "-y"))] = False
    """Agree to what the run uses of this computer without being asked; it is asked once for a run,
    and never with --directory."""

    micro_batch: Annotated[
        int | None, Option("N", USE, least=1, shown="measured at the first start")
    ] = None
    """Samples in one forward and backward pass; fewer take less memory."""

    def __post_init__(self) -> None:
        check_bounds(self)
