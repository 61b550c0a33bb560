"""What can be told to `lockstep plan`: its options, apart so that `lockstep --help` stays quick."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep import options

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file.")]
Nodes = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, max=256, show_default="those of --matrix", help="Number of nodes."
    ),
]
Profiles = Annotated[
    str,
    typer.Option(
        metavar="NAMES", show_default="cable", help="Link profiles, for the nodes in turn."
    ),
]
Matrix = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default="none",
        help="Links as measured between any two nodes, instead of profiles: JSON.",
    ),
]
Measure = Annotated[
    str | None,
    typer.Option(
        metavar="LINK",
        show_default="none",
        help="Coordinator whose members, as measured, are planned for.",
    ),
]
Parameters = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        max=10**12,
        show_default="from the run file",
        help="Parameters of the model.",
    ),
]
ComputeSeconds = Annotated[
    float | None,
    typer.Option(
        metavar="S",
        min=0,
        show_default="estimated",
        help="Seconds of a node's forward and backward pass in a round.",
    ),
]
Flops = Annotated[
    float | None,
    typer.Option(
        metavar="F",
        min=1,
        show_default="5e10, or from --compute-s",
        help="Operations per second of a node.",
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        show_default="an equal share of rounds.batch_samples_max",
        help="Samples of a node in a round.",
    ),
]
Jitter = Annotated[
    float,
    typer.Option(
        metavar="CV", min=0, max=10, help="Standard deviation of a round's compute over its mean."
    ),
]
Slower = Annotated[
    str,
    typer.Option(
        metavar="FACTORS",
        show_default="equally fast",
        help="Factors of the nodes' compute, in turn, such as 1,1,2.",
    ),
]


def plan(
    run_file: RunFile,
    *,
    nodes: Nodes = None,
    profiles: Profiles = "",
    profiles_file: options.ProfilesFile = None,
    matrix: Matrix = None,
    measure: Measure = None,
    parameters: Parameters = None,
    compute_s: ComputeSeconds = None,
    flops: Flops = None,
    samples: Samples = None,
    jitter: Jitter = 0.1,
    slower: Slower = "",
    json: options.JsonFile = None,
) -> None:
    """Predict a round of each method on given lines, and say what pays. Needs no torch."""
    from lockstep.commands.plan import PlanOptions, numbers, plan_run, profile_names

    given = PlanOptions(
        nodes=nodes,
        profiles=profile_names(profiles),
        profiles_file=profiles_file,
        matrix=matrix,
        measure=measure,
        parameters=parameters,
        compute_s=compute_s,
        flops=flops,
        samples=samples,
        jitter=jitter,
        slower=numbers("--slower", slower),
    )
    plan_run(run_file, given, json)
