"""The settings of an auditor, and of an audit after the run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.declared import Here
from node.relay.settings import RelaySettings
from node.settings import Data, SaveEvery, Threads
from protocol.option import Option, check_bounds


@dataclass(frozen=True, slots=True)
class AuditorSettings:
    """Settings of one auditor."""

    relay: Annotated[
        RelaySettings,
        Here(
            without=("archive", "sums"), defaults={"listen": "0.0.0.0:50720", "disk": 64 * 1024**3}
        ),
    ]
    """Settings of its links and its archive."""

    snapshot: Annotated[
        Path | None, Option("FILE", shown="genesis", names=("--from",), variable=False)
    ] = None
    """Snapshot to begin at, when the first payloads are gone and nothing is saved yet."""

    threads: Threads = 0

    save_every: SaveEvery = 50

    data: Data = None

    work_share: Annotated[float, Option("PERCENT", least=0, most=100, variable=False)] = 2.0
    """Part of the run's compute that the audit of work may take; 0: none."""

    sums_share: Annotated[float, Option("PERCENT", least=0, most=100, variable=False)] = 10.0
    """Part of the ranges that summers have added which are added again; unlike sums always are."""

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Settings of one audit."""

    target: Annotated[str, Option("DIR|URL", shown=False, argument=True)] = ""
    """Directory of a coordinator or a demo, or the address of a live coordinator."""

    checkpoint: Annotated[
        Path | None, Option("DIR", shown="that of a demo's directory", variable=False)
    ] = None
    """Published checkpoint to compare."""

    snapshot: Annotated[
        Path | None, Option("PATH", shown="genesis", names=("--from",), variable=False)
    ] = None
    """Snapshot or checkpoint to begin at."""

    payloads: Annotated[
        tuple[Path, ...], Option("DIR", shown="those of the nodes beside DIR", variable=False)
    ] = ()
    """Directory of payloads; repeatable."""

    work: Annotated[
        Path | None, Option("DATA", shown="evidence is not computed again", variable=False)
    ] = None
    """The run's prepared data: compute again the evidence against authors."""

    sums: Annotated[bool, Option(variable=False)] = False
    """In rounds that members added for all: add their ranges again, from the parts of authors."""

    proof: Annotated[Path | None, Option("FILE", shown=False, variable=False)] = None
    """In place of a run: check a proof that its coordinator signed two histories."""

    threads: Threads = 0

    json_path: str | None = None
    """File for the findings; "-" is standard output."""
