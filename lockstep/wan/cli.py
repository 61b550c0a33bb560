"""`lockstep wan`: home links on this machine."""

from dataclasses import replace
from typing import Annotated

from lockstep.cluster.settings import Seed
from lockstep.declared import CommandGroup
from lockstep.options import ProfilesFile
from lockstep.wan.settings import WanSettings
from protocol.option import Option

wan_app = CommandGroup(
    name="wan", help="Home links on this machine, in network namespaces.", no_args_is_help=True
)


@wan_app.command()
def up(
    settings: WanSettings,
    *,
    json: Annotated[
        str,
        Option(
            "FILE",
            shown="none",
            variable=False,
            help="File for links, rounds, digests and traffic as JSON; - prints it.",
        ),
    ] = "",
) -> None:
    """Measure home links between namespaces, then train over them.

    Needs root and iproute2.
    """
    from lockstep.wan.up import wan_up

    wan_up(replace(settings, json_path=json))


@wan_app.command()
def down(
    *,
    even_in_use: Annotated[
        bool,
        Option(names=("--all",), variable=False, help="Remove laboratories that are in use, too."),
    ] = False,
) -> None:
    """Remove the namespaces and processes of laboratories that were killed."""
    from lockstep.wan.down import wan_down

    wan_down(even_in_use=even_in_use)


@wan_app.command()
def shape(
    interface: Annotated[
        str,
        Option(
            "INTERFACE",
            argument=True,
            help="Network interface, such as eth0.",
        ),
    ],
    *,
    profile: Annotated[
        str,
        Option("NAME", variable="LOCKSTEP_LINK_PROFILE", help="Link profile of the interface."),
    ] = "cable",
    profiles_file: ProfilesFile = None,
    seed: Seed = 0,
) -> None:
    """Give an interface the rate, delay and loss of a home link until stopped.

    For containers. Needs the capability NET_ADMIN.
    """
    from lockstep.wan.lab.shaping import shape as shape_interface
    from lockstep.wan.profiles import BUILTIN, read_profiles

    shape_interface(
        interface, read_profiles(profiles_file or BUILTIN).profile(profile).link(), seed=seed
    )
