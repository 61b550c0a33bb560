"""The settings of a demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from protocol.option import Option, check_bounds

Nodes = Annotated[int, Option("N", least=1, most=64, help="Number of node processes.")]

Seed = Annotated[int, Option("N", least=0, help="Seed of everything that is drawn.")]

ALGORITHM = Option(
    "NAME", variable=False, help="Algorithm of the run: local_steps, demo or gossip-adam."
)

Algorithm = Annotated[str, ALGORITHM]


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """Settings of one demo."""

    directory: Annotated[Path, Option("DIR")] = Path("out/demo")
    """Directory for everything it writes. The state of an earlier demo's processes is replaced, the
    prepared corpus is kept."""

    nodes: Nodes = 4

    rounds: Annotated[int, Option("N", least=1)] = 60
    """Steps to train."""

    seed: Seed = 0

    json_path: str = ""
    """File for the summary; "-" is standard output, empty: in the directory."""

    algorithm: Algorithm = "local_steps"

    def __post_init__(self) -> None:
        check_bounds(self)
