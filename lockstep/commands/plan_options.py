"""What can be told to `lockstep plan`: its options, apart so that `lockstep --help` stays quick."""

from pathlib import Path
from typing import Annotated

import typer

RunFile = Annotated[Path, typer.Argument(metavar="RUN.toml", help="Run file.")]
Nodes = Annotated[
    int | None, typer.Option(min=1, max=256, help="Nodes. [default: those of --matrix]")
]
Profiles = Annotated[
    str, typer.Option(help="Home links for the nodes in turn, by name: cable,dsl,...")
]
ProfilesFile = Annotated[
    Path | None,
    typer.Option(
        envvar="LOCKSTEP_PROFILES_FILE", help="Link profiles. [default: the built-in ones]"
    ),
]
Matrix = Annotated[
    Path | None, typer.Option(help="Measured links between nodes: JSON, instead of profiles.")
]
Parameters = Annotated[
    int | None,
    typer.Option(min=1, max=10**12, help="Parameters of the model. [default: from the run file]"),
]
ComputeSeconds = Annotated[
    float | None, typer.Option(min=0, help="Seconds of a node's forward and backward pass.")
]
Flops = Annotated[
    float | None,
    typer.Option(min=1, help="Operations a second of a node. [default: 5e10, or from --compute-s]"),
]
OptimizerSeconds = Annotated[
    float | None, typer.Option(min=0, help="Seconds of a step of AdamW. [default: estimated]")
]
DemoSeconds = Annotated[
    float | None, typer.Option(min=0, help="Seconds of DeMo's own work. [default: estimated]")
]
Samples = Annotated[
    int | None,
    typer.Option(min=1, help="Samples of a node in a round. [default: its equal share]"),
]
Jitter = Annotated[
    float,
    typer.Option(min=0, max=10, help="Standard deviation of a round's compute over its mean."),
]
Slower = Annotated[str, typer.Option(help="Factors of the nodes' compute, in turn: 1,1,2.")]
LocalSteps = Annotated[int, typer.Option(min=1, max=10_000, help="Local steps of DiLoCo.")]
DenseBits = Annotated[
    int, typer.Option(min=1, max=64, help="Bits of a number in a dense gradient.")
]
GossipBits = Annotated[
    int, typer.Option(min=1, max=64, help="Bits of a parameter that gossip Adam sends.")
]
Seed = Annotated[
    int, typer.Option(envvar="LOCKSTEP_SEED", min=0, help="Seed of the drawn compute times.")
]
Json = Annotated[str | None, typer.Option(help="Write everything there; - prints it.")]
Svg = Annotated[Path | None, typer.Option(help="Write a figure there.")]


def plan(
    run_file: RunFile,
    *,
    nodes: Nodes = None,
    profiles: Profiles = "",
    profiles_file: ProfilesFile = None,
    matrix: Matrix = None,
    parameters: Parameters = None,
    compute_s: ComputeSeconds = None,
    flops: Flops = None,
    optimizer_s: OptimizerSeconds = None,
    demo_s: DemoSeconds = None,
    samples: Samples = None,
    jitter: Jitter = 0.1,
    slower: Slower = "",
    local_steps: LocalSteps = 50,
    dense_bits: DenseBits = 16,
    gossip_bits: GossipBits = 16,
    seed: Seed = 0,
    json: Json = None,
    svg: Svg = None,
) -> None:
    """Predict a round of each method on given lines, and say what pays. Needs no torch."""
    from lockstep.commands.plan import PlanOptions, numbers, plan_run, profile_names
    from lockstep.wan.profiles import BUILTIN

    options = PlanOptions(
        nodes=nodes,
        profiles=profile_names(profiles),
        profiles_file=profiles_file or BUILTIN,
        matrix=matrix,
        parameters=parameters,
        compute_s=compute_s,
        flops=flops,
        optimizer_s=optimizer_s,
        demo_s=demo_s,
        samples=samples,
        jitter=jitter,
        slower=numbers("--slower", slower),
        local_steps=local_steps,
        dense_bits=dense_bits,
        gossip_bits=gossip_bits,
        seed=seed,
    )
    plan_run(run_file, options, json, svg)
