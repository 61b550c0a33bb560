"""`lockstep wan`: home links on this machine."""

from pathlib import Path
from typing import Annotated

import typer

wan_app = typer.Typer(
    name="wan", help="Home links on this machine, in network namespaces.", no_args_is_help=True
)

ProfilesFileOption = Annotated[
    Path | None,
    typer.Option(
        envvar="LOCKSTEP_PROFILES_FILE", help="Link profiles. [default: the built-in ones]"
    ),
]


@wan_app.command()
def up(
    *,
    nodes: Annotated[
        int, typer.Option(envvar="LOCKSTEP_NODES", min=1, max=64, help="Node processes.")
    ] = 4,
    profiles: Annotated[
        str, typer.Option(help="Link profiles, for the nodes in turn.")
    ] = "cable,dsl,starlink,lte",
    rounds: Annotated[
        int, typer.Option(envvar="LOCKSTEP_ROUNDS", min=0, help="Steps; 0: only measure.")
    ] = 30,
    seed: Annotated[
        int,
        typer.Option(envvar="LOCKSTEP_SEED", min=0, help="Of the run, losses and random faults."),
    ] = 0,
    fault: Annotated[
        list[str] | None,
        typer.Option(
            help="Such as cut:node-2@10s+5s, slow:node-1/10@r4+20s, kill:node-0@r8, random:3."
        ),
    ] = None,
    nat: Annotated[str, typer.Option(help="none or masquerade, for the nodes in turn.")] = "none",
    links: Annotated[
        str, typer.Option(help="grpc, libp2p or grpc+libp2p, for the nodes in turn.")
    ] = "grpc",
    relay: Annotated[
        bool, typer.Option("--relay", help="A relay, on a public computer of its own.")
    ] = False,
    regions: Annotated[
        str, typer.Option(help="For the nodes in turn. [default: all in one place]")
    ] = "",
    profiles_file: ProfilesFileOption = None,
    directory: Annotated[
        Path, typer.Option(envvar="LOCKSTEP_DIRECTORY", help="State and logs.")
    ] = Path("out/wan"),
    json: Annotated[str, typer.Option(help="Links, rounds, digests, traffic; - prints them.")] = "",
) -> None:
    """Measure home links between namespaces, then train over them. Needs root."""
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
    )
    wan_up(settings)


@wan_app.command()
def down(
    *,
    even_in_use: Annotated[
        bool, typer.Option("--all", help="Also laboratories that are in use.")
    ] = False,
) -> None:
    """Remove the namespaces and processes that killed laboratories left."""
    from lockstep.wan.down import wan_down

    wan_down(even_in_use=even_in_use)


@wan_app.command()
def shape(
    interface: Annotated[str, typer.Argument(metavar="INTERFACE", help="Such as eth0.")],
    *,
    profile: Annotated[
        str, typer.Option(envvar="LOCKSTEP_LINK_PROFILE", help="Which home link.")
    ] = "cable",
    profiles_file: ProfilesFileOption = None,
    seed: Annotated[
        int, typer.Option(envvar="LOCKSTEP_SEED", min=0, help="Of jitter and loss.")
    ] = 0,
) -> None:
    """Give an interface a home link's rate, delay and loss until stopped: for containers. Needs
    NET_ADMIN.
    """
    from lockstep.wan.lab.shaping import shape as shape_interface
    from lockstep.wan.profiles import BUILTIN, read_profiles

    shape_interface(
        interface, read_profiles(profiles_file or BUILTIN).profile(profile).link(), seed=seed
    )
