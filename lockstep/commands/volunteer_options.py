"""The options of `lockstep join`, and the commands of its owner from another terminal."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lockstep import options
from lockstep.cluster.settings import Seed
from lockstep.declared import CommandGroup, Here
from lockstep.volunteer.limits import Limits
from lockstep.volunteer.wishes import NodePlace, Wishes
from node.settings import NodeSettings
from protocol.option import Option

Role = Literal["join", "coordinator", "relay", "auditor"]


HomeAlone = Annotated[NodePlace, Here(only=("home",))]

LIMITED = ("micro_batch", "duty_cycle", "gpu_memory", "upload_limit", "download_limit")
"""Settings of a node that come from its owner's wishes."""

EXAMINED = (
    "coordinator",
    "token",
    "data",
    "data_url",
    "device",
    "threads",
    "upload_limit",
    "download_limit",
    "duty_cycle",
    "gpu_memory",
)
"""Settings of a node that `lockstep doctor` takes."""


def join(
    node: Annotated[NodeSettings, Here(without=LIMITED)],
    place: NodePlace,
    wishes: Wishes,
    *,
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Train on this machine as a node of a run; Ctrl-C finishes the round and leaves."""
    from lockstep.commands.join import join as join_run
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions

    node = replace(node.at(place.path), **wishes.limits.of_a_node)
    node = replace(node, corpora=(node.corpora or place.home / "corpora").expanduser())
    serving = ServeOptions(place.path, admin, follow_parent)
    join_run(node, serving, Home(place.path, place.only), wishes)


def doctor(
    node: Annotated[NodeSettings, Here(only=EXAMINED)],
    place: NodePlace,
    wishes: Annotated[Wishes, Here(only=("micro_batch",))],
    *,
    json: options.JsonFile = None,
) -> int:
    """Say whether this machine can take part in a run and will be in time, and what to do if not.

    Changes nothing. Ends with the exit code that a join would have.
    """
    from lockstep.commands.doctor import doctor as examine
    from lockstep.service.home import Home

    finds_pass = wishes.micro_batch is None
    node = node.at(place.path)
    node = replace(node, micro_batch=wishes.micro_batch or node.micro_batch)
    return examine(node, Home(place.path, place.only), json, finds_pass=finds_pass)


def pause(
    duration: Annotated[
        str,
        Option(
            "DURATION",
            shown="until `lockstep resume`",
            help="Length of the pause, such as 90s, 30m, 2h or 1d.",
            argument=True,
        ),
    ] = "",
    *,
    place: NodePlace,
) -> None:
    """Let this machine's node finish its round and rest; it comes back by itself."""
    from lockstep.commands.wish import tell
    from lockstep.volunteer.limits import parse_duration

    tell("pause", place, parse_duration(duration) if duration else None)


def resume(place: NodePlace) -> None:
    """End a pause."""
    from lockstep.commands.wish import tell

    tell("resume", place)


def finish(place: NodePlace) -> None:
    """Let this machine's node finish its round, save, and end."""
    from lockstep.commands.wish import tell

    tell("finish", place)


def stop(place: NodePlace) -> None:
    """Stop this machine's node at once, as a second Ctrl-C does."""
    from lockstep.commands.wish import tell

    tell("stop", place)


def limit(place: NodePlace, changes: Annotated[dict[str, Any], Here(changes=Limits)]) -> None:
    """Change what this machine's node may use until it ends; without options, show it."""
    from lockstep.commands.wish import tell

    tell("limit", place, limits=changes)


def me(place: NodePlace, *, json: options.JsonFile = None) -> None:
    """Show what this machine's node does, and whether it counts."""
    from lockstep.commands.wish import show

    show(place, json)


def generate(
    checkpoint: Annotated[Path, Option("DIR", argument=True, help="Directory of the checkpoint.")],
    *,
    prompt: Annotated[
        str, Option("TEXT", shown="none", variable=False, help="Text to continue.")
    ] = "",
    tokens: Annotated[
        int, Option("N", least=1, variable=False, help="Limit on the tokens that are generated.")
    ] = 200,
    temperature: Annotated[
        float,
        Option(
            "T",
            least=0.0,
            variable=False,
            help="Temperature of the draws; 0: always the likeliest token.",
        ),
    ] = 0.8,
    seed: Seed = 0,
) -> None:
    """Continue a text with a trained checkpoint."""
    from lockstep.commands.generate import print_text

    print_text(checkpoint, prompt, max_tokens=tokens, temperature=temperature, seed=seed)


keys_app = CommandGroup(
    name="keys", help="Keep this computer's identity elsewhere.", no_args_is_help=True
)
service_app = CommandGroup(
    name="service", help="Work for a run at each start of this computer.", no_args_is_help=True
)


@keys_app.command()
def backup(
    file: Annotated[Path, Option("FILE", argument=True, help="New file for the key.")],
    *,
    place: HomeAlone,
) -> None:
    """Copy the key of this computer to a new file."""
    from lockstep.commands import keys

    keys.backup(place.home, file)


@keys_app.command()
def restore(
    file: Annotated[Path, Option("FILE", argument=True, help="File that backup wrote.")],
    *,
    place: HomeAlone,
    force: Annotated[
        bool, Option(variable=False, help="Replace another identity of this computer.")
    ] = False,
) -> None:
    """Put a key in the place of this computer's."""
    from lockstep.commands import keys

    keys.restore(place.home, file, force=force)


@service_app.command(context_settings={"ignore_unknown_options": True})
def install(
    context: typer.Context,
    words: Annotated[
        list[str],
        Option(
            "[join | coordinator | relay | auditor] ARGUMENTS...",
            argument=True,
            help="Command that the unit runs, and its arguments; a link alone is joined.",
        ),
    ],
) -> None:
    """Write a systemd user unit that joins, operates, relays or audits a run, and start it."""
    from lockstep.commands import service

    role, arguments = service.role_and_arguments(words)
    root: Any = context.find_root().command
    root.commands[role].make_context(role, list(arguments))  # judges them before all else
    service.install(role, arguments)


@service_app.command()
def remove(
    role: Annotated[
        Role, Option(argument=True, shown="join", help="Command that the unit runs.")
    ] = "join",
) -> None:
    """Stop a unit and take it away; runs and identity stay."""
    from lockstep.commands import service

    service.remove(role)


def upgrade(
    check: Annotated[
        str,
        Option(
            "LINK",
            shown="none",
            variable=False,
            help="Run whose coordinator says whether this release fits.",
        ),
    ] = "",
) -> None:
    """Say how to upgrade this installation, or whether it fits a run."""
    from lockstep.commands.upgrade import upgrade as say

    say(check)


def uninstall(
    *,
    place: HomeAlone,
    yes: Annotated[bool, Option(variable=False, help="Do not ask.")] = False,
) -> None:
    """Remove what Lockstep has written for this account: identity, runs, data, services."""
    from lockstep.commands.uninstall import uninstall as take_away

    take_away(place.home, yes=yes)


GROUPS = (keys_app, service_app)
"""The volunteer's groups of commands."""

COMMANDS = (join, doctor, me, pause, resume, limit, finish, stop, upgrade, uninstall)
"""The volunteer's commands, in the order of their help."""
