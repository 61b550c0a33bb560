"""`lockstep wan`: home links on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep import options

wan_app = typer.Typer(
    name="wan", help="Home links on this machine, in network namespaces.", no_args_is_help=True
)

Profiles = Annotated[
    str, typer.Option(metavar="NAMES", help="Link profiles, for the nodes in turn.")
]
Rounds = Annotated[
    int,
    typer.Option(
        metavar="N", envvar="LOCKSTEP_ROUNDS", min=0, help="Steps to train; 0: only measure."
    ),
]
FaultTexts = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FAULT",
        show_default="none",
        help="Fault on a schedule, such as cut:node-2@10s+5s, slow:node-1/10@r4+20s, "
        "kill:node-0@r8 or random:3; repeatable.",
    ),
]
Nats = Annotated[
    str, typer.Option(metavar="KINDS", help="Routers, for the nodes in turn: none or masquerade.")
]
Links = Annotated[
    str,
    typer.Option(
        metavar="KINDS", help="Transports, for the nodes in turn: grpc, libp2p or grpc+libp2p."
    ),
]
Regions = Annotated[
    str,
    typer.Option(
        metavar="NAMES", show_default="all in one place", help="Regions, for the nodes in turn."
    ),
]
Directory = Annotated[
    Path,
    typer.Option(metavar="DIR", envvar="LOCKSTEP_DIRECTORY", help="Directory for state and logs."),
]
JsonFile = Annotated[
    str,
    typer.Option(
        metavar="FILE",
        show_default="none",
        help="File for links, rounds, digests and traffic as JSON; - prints it.",
    ),
]


@wan_app.command()
def up(
    *,
    nodes: options.Nodes = 4,
    profiles: Profiles = "cable,dsl,starlink,lte",
    rounds: Rounds = 30,
    seed: options.Seed = 0,
    fault: FaultTexts = None,
    nat: Nats = "none",
    links: Links = "grpc",
    relay: Annotated[
        bool, typer.Option("--relay", help="Add a relay on a public computer of its own.")
    ] = False,
    regions: Regions = "",
    profiles_file: options.ProfilesFile = None,
    directory: Directory = Path("out/wan"),
    json: JsonFile = "",
    algorithm: options.Algorithm = "local_steps",
) -> None:
    """Measure home links between namespaces, then train over them.

    Needs root and iproute2.
    """
    from lockstep.wan.profiles import BUILTIN
    from lockstep.wan.up import WanSettings, wan_up

    lists = (profiles, nat, links, regions)
    names, nats, kinds, places = (tuple(filter(None, text.split(","))) for text in lists)
    settings = WanSettings(
        directory=directory,
        nodes=nodes,
        profiles=names,
        rounds=rounds,
        seed=seed,
        json_path=json,
        nat=nats,
        links=kinds,
        relay=relay,
        regions=places,
        faults=tuple(fault or ()),
        profiles_file=profiles_file or BUILTIN,
        algorithm=algorithm,
    )
    wan_up(settings)


@wan_app.command()
def down(
    *,
    even_in_use: Annotated[
        bool, typer.Option("--all", help="Remove laboratories that are in use, too.")
    ] = False,
) -> None:
    """Remove the namespaces and processes of laboratories that were killed."""
    from lockstep.wan.down import wan_down

    wan_down(even_in_use=even_in_use)


@wan_app.command()
def shape(
    interface: Annotated[
        str, typer.Argument(metavar="INTERFACE", help="Network interface, such as eth0.")
    ],
    *,
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME", envvar="LOCKSTEP_LINK_PROFILE", help="Link profile of the interface."
        ),
    ] = "cable",
    profiles_file: options.ProfilesFile = None,
    seed: options.Seed = 0,
) -> None:
    """Give an interface the rate, delay and loss of a home link until stopped.

    For containers. Needs the capability NET_ADMIN.
    """
    from lockstep.wan.lab.shaping import shape as shape_interface
    from lockstep.wan.profiles import BUILTIN, read_profiles

    shape_interface(
        interface, read_profiles(profiles_file or BUILTIN).profile(profile).link(), seed=seed
    )
