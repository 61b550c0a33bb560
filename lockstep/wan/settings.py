"""The settings of a laboratory of home links."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.cluster.settings import Algorithm, Nodes, Seed
from lockstep.options import ProfilesFile, listed
from protocol.option import Option, check_bounds


@dataclass(frozen=True, slots=True)
class WanSettings:
    """Settings of one laboratory and its training. Lists are for the nodes in turn."""

    directory: Annotated[Path, Option("DIR")] = Path("out/wan")
    """Directory for state and logs, with one for each laboratory in it."""

    nodes: Nodes = 4

    profiles: Annotated[tuple[str, ...], Option("NAMES", variable=False, reads=listed)] = (
        "cable",
        "dsl",
        "starlink",
        "lte",
    )
    """Link profiles, for the nodes in turn."""

    rounds: Annotated[int, Option("N", least=0)] = 30
    """Steps to train; 0: only measure."""

    seed: Seed = 0

    json_path: str = ""
    """File for the summary; "-" is standard output, "" none."""

    nat: Annotated[tuple[str, ...], Option("KINDS", variable=False, reads=listed)] = ("none",)
    """Routers, for the nodes in turn: none or masquerade."""

    regions: Annotated[
        tuple[str, ...], Option("NAMES", shown="all in one place", variable=False, reads=listed)
    ] = ()
    """Regions, for the nodes in turn."""

    links: Annotated[tuple[str, ...], Option("KINDS", variable=False, reads=listed)] = ("grpc",)
    """Transports, for the nodes in turn: grpc, libp2p or grpc+libp2p."""

    relay: Annotated[bool, Option(variable=False)] = False
    """Add a relay on a public computer of its own."""

    fault: Annotated[tuple[str, ...], Option("FAULT", shown="none", variable=False)] = ()
    """Fault on a schedule, such as cut:node-2@10s+5s, slow:node-1/10@r4+20s, kill:node-0@r8 or
    random:3; repeatable."""

    profiles_file: ProfilesFile = None

    algorithm: Algorithm = "local_steps"

    def __post_init__(self) -> None:
        check_bounds(self)
