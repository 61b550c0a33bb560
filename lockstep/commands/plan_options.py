"""What can be told to `lockstep plan`: its options, apart so that `lockstep --help` stays quick."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from lockstep.exit_codes import UsageError
from lockstep.options import JsonFile, ProfilesFile, listed
from protocol.option import Option, check_bounds


def factors(text: str) -> tuple[float, ...]:
    """The numbers in a list with commas; `UsageError` for one that is none, or not above 0."""
    found = []
    for part in text.split(",") if text.strip() else ():
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < 1e9:
            raise UsageError(f"--slower: expected numbers above 0, such as 1,1.5,2, got {part!r}")
        found.append(value)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """What a person says besides the run file; None where it is not said."""

    nodes: Annotated[
        int | None, Option("N", shown="those of --measure", least=1, most=256, variable=False)
    ] = None
    """Number of nodes."""

    profiles: Annotated[
        tuple[str, ...], Option("NAMES", shown="cable", variable=False, reads=listed)
    ] = ()
    """Link profiles, for the nodes in turn."""

    profiles_file: ProfilesFile = None

    measure: Annotated[str | None, Option("LINK", shown="none", variable=False)] = None
    """Coordinator whose members, as measured, are planned for."""

    parameters: Annotated[
        int | None,
        Option("N", shown="from the run file", least=1, most=10**12, variable=False),
    ] = None
    """Parameters of the model."""

    compute_s: Annotated[float | None, Option("S", shown="estimated", least=0, variable=False)] = (
        None
    )
    """Seconds of a node's forward and backward pass in a round."""

    flops: Annotated[
        float | None, Option("F", shown="5e10, or from --compute-s", least=1, variable=False)
    ] = None
    """Operations per second of a node."""

    samples: Annotated[
        int | None,
        Option("N", shown="an equal share of rounds.batch_samples_max", least=1, variable=False),
    ] = None
    """Samples of a node in a round."""

    jitter: Annotated[float, Option("CV", least=0, most=10, variable=False)] = 0.1
    """Standard deviation of a round's compute over its mean."""

    slower: Annotated[
        tuple[float, ...],
        Option("FACTORS", shown="equally fast", variable=False, reads=factors),
    ] = ()
    """Factors of the nodes' compute, in turn, such as 1,1,2."""

    def __post_init__(self) -> None:
        check_bounds(self)


def plan(
    run_file: Annotated[Path, Option("RUN.toml", argument=True, help="Run file.")],
    given: PlanOptions,
    *,
    json: JsonFile = None,
) -> None:
    """Predict a round of each method on given lines, and say what pays. Needs no torch."""
    from lockstep.commands.plan import plan_run

    plan_run(run_file, given, json)
