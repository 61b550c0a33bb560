"""The options of `lockstep join`, and the commands of its owner from another terminal."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from lockstep import limit_options as limits_of
from lockstep import options
from lockstep.volunteer.limits import Limits, parse_hours
from lockstep.volunteer.others.quiet import QuietLimits

Role = Literal["join", "coordinator", "relay", "auditor"]


def join(
    url: options.Url,
    *,
    home: options.Home = Path("~/.lockstep"),
    directory: options.NodeDirectory = None,
    data: options.Data = None,
    data_url: options.DataUrl = "",
    data_cache: options.DataCache = 10**9,
    corpora: options.Corpora = None,
    listen: options.NodeListen = "auto",
    advertise: options.Advertise = None,
    links: options.Links = "grpc",
    upload_limit: options.UploadLimit = 0,
    download_limit: options.DownloadLimit = 0,
    device: options.Device = "auto",
    threads: options.Threads = 0,
    micro_batch: options.MicroBatch = None,
    publish: options.Publish = "",
    save_every: options.SaveEvery = 20,
    name: options.Name = "",
    token: options.Token = "",
    nice: limits_of.Nice = 10,
    hours: limits_of.Hours = "",
    daily_transfer: limits_of.DailyTransfer = 0,
    on_battery: limits_of.OnBattery = False,
    when_idle: limits_of.WhenIdle = 0,
    other_load: limits_of.OtherLoad = 0,
    duty_cycle: limits_of.DutyCycle = 100,
    gpu_memory: limits_of.GpuMemory = 100,
    memory: options.MemoryLimit = 0,
    disk: options.DiskLimit = 0,
    dial_private: options.DialPrivate = False,
    p2pd_sha256: options.P2pdSha256 = "",
    yes: options.Yes = False,
    restart_from: options.Checkpoint = None,
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Train on this machine as a node of a run; Ctrl-C finishes the round and leaves."""
    from lockstep.commands import join as command
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions
    from node.settings import NodeSettings
    from protocol.border.join_link import split_token

    url, token = split_token(url, token)
    place = (directory or home).expanduser()
    settings = NodeSettings(url, place, data, device=device, threads=threads, name=name)
    settings = replace(settings, listen=listen, advertise=tuple(advertise or ()), links=links)
    settings = replace(settings, corpora=(corpora or home / "corpora").expanduser(), token=token)
    settings = replace(settings, save_every=save_every, publish=publish, data_url=data_url)
    settings = replace(settings, data_cache=data_cache, restart_from=restart_from)
    settings = replace(settings, dial_private=dial_private, p2pd_sha256=p2pd_sha256)
    machine = (on_battery, QuietLimits(when_idle, other_load), duty_cycle, gpu_memory)
    limits = Limits(parse_hours(hours), daily_transfer, *machine, upload_limit, download_limit)
    wishes = command.Wishes(limits, nice, memory, disk, yes, micro_batch)
    serving, known = ServeOptions(place, admin, follow_parent), directory is not None
    command.join(settings, serving, Home(place, only=known), wishes)


def doctor(
    url: options.Url,
    *,
    home: options.Home = Path("~/.lockstep"),
    token: options.Token = "",
    data: options.Data = None,
    data_url: options.DataUrl = "",
    device: options.Device = "auto",
    threads: options.Threads = 0,
    micro_batch: options.MicroBatch = None,
    upload_limit: options.UploadLimit = 0,
    download_limit: options.DownloadLimit = 0,
    duty_cycle: limits_of.DutyCycle = 100,
    gpu_memory: limits_of.GpuMemory = 100,
    json: options.JsonFile = None,
) -> int:
    """Say whether this machine can take part in a run and will be in time, and what to do if not.

    Changes nothing. Ends with the exit code that a join would have.
    """
    from lockstep.commands.doctor import doctor as examine
    from node.settings import NodeSettings
    from protocol.border.join_link import split_token

    url, token = split_token(url, token)
    settings = NodeSettings(url, home, data=data, device=device, threads=threads, token=token)
    settings = replace(settings, micro_batch=micro_batch or settings.micro_batch)
    settings = replace(settings, data_url=data_url, duty_cycle=duty_cycle, gpu_memory=gpu_memory)
    settings = replace(settings, upload_limit=upload_limit, download_limit=download_limit)
    return examine(settings, home, json, finds_pass=micro_batch is None)


def pause(
    duration: Annotated[
        str,
        typer.Argument(
            metavar="DURATION",
            show_default="until `lockstep resume`",
            help="Length of the pause, such as 90s, 30m, 2h or 1d.",
        ),
    ] = "",
    *,
    home: options.Home = Path("~/.lockstep"),
    directory: options.NodeDirectory = None,
) -> None:
    """Let this machine's node finish its round and rest; it comes back by itself."""
    from lockstep.commands.wish import tell
    from lockstep.volunteer.limits import parse_duration

    tell("pause", home, directory, parse_duration(duration) if duration else None)


def resume(
    *, home: options.Home = Path("~/.lockstep"), directory: options.NodeDirectory = None
) -> None:
    """End a pause."""
    from lockstep.commands.wish import tell

    tell("resume", home, directory)


def finish(
    *, home: options.Home = Path("~/.lockstep"), directory: options.NodeDirectory = None
) -> None:
    """Let this machine's node finish its round, save, and end."""
    from lockstep.commands.wish import tell

    tell("finish", home, directory)


def stop(
    *, home: options.Home = Path("~/.lockstep"), directory: options.NodeDirectory = None
) -> None:
    """Stop this machine's node at once, as a second Ctrl-C does."""
    from lockstep.commands.wish import tell

    tell("stop", home, directory)


def limit(
    *,
    home: options.Home = Path("~/.lockstep"),
    directory: options.NodeDirectory = None,
    hours: limits_of.NewHours = None,
    daily_transfer: limits_of.NewDailyTransfer = None,
    upload_limit: limits_of.NewUploadLimit = None,
    download_limit: limits_of.NewDownloadLimit = None,
    on_battery: limits_of.NewOnBattery = None,
    when_idle: limits_of.NewWhenIdle = None,
    other_load: limits_of.NewOtherLoad = None,
    duty_cycle: limits_of.NewDutyCycle = None,
    gpu_memory: limits_of.NewGpuMemory = None,
) -> None:
    """Change what this machine's node may use until it ends; without options, show it."""
    from lockstep.commands.wish import tell

    named = {
        "hours": hours,
        "daily_transfer": daily_transfer,
        "upload_limit": upload_limit,
        "download_limit": download_limit,
        "on_battery": on_battery,
        "when_idle": when_idle,
        "other_load": other_load,
        "duty_cycle": duty_cycle,
        "gpu_memory": gpu_memory,
    }
    changes = {name: value for name, value in named.items() if value is not None}
    tell("limit", home, directory, limits=changes)


def me(
    *,
    home: options.Home = Path("~/.lockstep"),
    directory: options.NodeDirectory = None,
    json: options.JsonFile = None,
) -> None:
    """Show what this machine's node does, and whether it counts."""
    from lockstep.commands.wish import show

    show(home, directory, json)


def generate(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the checkpoint.")],
    *,
    prompt: Annotated[
        str, typer.Option(metavar="TEXT", show_default="none", help="Text to continue.")
    ] = "",
    tokens: Annotated[
        int, typer.Option(metavar="N", min=1, help="Limit on the tokens that are generated.")
    ] = 200,
    temperature: Annotated[
        float,
        typer.Option(
            metavar="T", min=0.0, help="Temperature of the draws; 0: always the likeliest token."
        ),
    ] = 0.8,
    seed: options.Seed = 0,
) -> None:
    """Continue a text with a trained checkpoint."""
    from lockstep.commands.generate import print_text

    print_text(checkpoint, prompt, max_tokens=tokens, temperature=temperature, seed=seed)


keys_app = typer.Typer(
    name="keys", help="Keep this computer's identity elsewhere.", no_args_is_help=True
)
service_app = typer.Typer(
    name="service", help="Work for a run at each start of this computer.", no_args_is_help=True
)


@keys_app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="New file for the key.")],
    *,
    home: options.Home = Path("~/.lockstep"),
) -> None:
    """Copy the key of this computer to a new file."""
    from lockstep.commands import keys

    keys.backup(home, file)


@keys_app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File that backup wrote.")],
    *,
    home: options.Home = Path("~/.lockstep"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace another identity of this computer.")
    ] = False,
) -> None:
    """Put a key in the place of this computer's."""
    from lockstep.commands import keys

    keys.restore(home, file, force=force)


@service_app.command(context_settings={"ignore_unknown_options": True})
def install(
    context: typer.Context,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[join | coordinator | relay | auditor] ARGUMENTS...",
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
        Role, typer.Argument(help="Command that the unit runs.", show_default="join")
    ] = "join",
) -> None:
    """Stop a unit and take it away; runs and identity stay."""
    from lockstep.commands import service

    service.remove(role)


def upgrade(
    check: Annotated[
        str,
        typer.Option(
            "--check",
            metavar="LINK",
            show_default="none",
            help="Run whose coordinator says whether this release fits.",
        ),
    ] = "",
) -> None:
    """Say how to upgrade this installation, or whether it fits a run."""
    from lockstep.commands.upgrade import upgrade as say

    say(check)


def uninstall(
    *,
    home: options.Home = Path("~/.lockstep"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove what Lockstep has written for this account: identity, runs, data, services."""
    from lockstep.commands.uninstall import uninstall as take_away

    take_away(home, yes=yes)


GROUPS = (keys_app, service_app)
"""The volunteer's groups of commands."""

COMMANDS = (join, doctor, me, pause, resume, limit, finish, stop, upgrade, uninstall)
"""The volunteer's commands, in the order of their help."""
