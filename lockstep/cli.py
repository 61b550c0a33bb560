"""The `lockstep` command: what can be asked, from where each setting comes, and how errors end.

Commands are thin: each names its options and calls one function of one module, imported only then,
so that `lockstep --help` is quick and what needs no torch runs without it. Settings come from the
default, the settings file, the environment and the flag, the later winning
(`lockstep.settings_file`). An error ends as one line on standard error and a documented exit code
(`lockstep.exit_codes`); --debug shows where it came from."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep import __version__
from lockstep.commands.plan_options import plan
from lockstep.console import error_line
from lockstep.exit_codes import MEANINGS, ExitCode, UsageError, exit_code
from lockstep.service.logs import log_to_standard_error
from lockstep.settings_file import read_settings
from lockstep.wan.cli import wan_app
from protocol.errors import LockstepError

NODE_PACKAGES = {"torch", "transformers", "safetensors", "tokenizers", "hivemind", "matplotlib"}
"""Top-level packages that come with the `node` extra."""

_EPILOG = "\n".join(
    ["Exit codes:", *(f"{code.value:3d}  {meaning}" for code, meaning in MEANINGS.items())]
)

app = typer.Typer(
    name="lockstep",
    help="Train one neural network on strangers' computers; every replica stays equal, bit for bit.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
data_app = typer.Typer(name="data", help="Prepare training data.", no_args_is_help=True)
app.add_typer(data_app)
app.add_typer(wan_app)

UrlArgument = Annotated[
    str,
    typer.Argument(
        envvar="LOCKSTEP_COORDINATOR", help="Coordinator: HOST:PORT or lockstep://HOST:PORT."
    ),
]
AdvertiseOption = Annotated[
    list[str] | None,
    typer.Option(envvar="LOCKSTEP_ADVERTISE", help="Address peers should dial; repeatable."),
]
LinksOption = Annotated[
    str,
    typer.Option(
        envvar="LOCKSTEP_LINKS", help="Transports to peers: grpc, libp2p, or both: grpc,libp2p."
    ),
]
UploadLimitOption = Annotated[
    int,
    typer.Option(
        envvar="LOCKSTEP_UPLOAD_LIMIT", min=0, help="Bytes per second at most; 0: no limit."
    ),
]
AdminOption = Annotated[
    str, typer.Option(envvar="LOCKSTEP_ADMIN", help="Address of metrics, health and status.")
]
FollowParentOption = Annotated[bool, typer.Option("--follow-parent", hidden=True)]
ThreadsOption = Annotated[
    int, typer.Option(envvar="LOCKSTEP_THREADS", min=0, help="CPU threads; 0: all cores.")
]
MicroBatchOption = Annotated[
    int,
    typer.Option(
        envvar="LOCKSTEP_MICRO_BATCH", min=1, help="Samples in one forward and backward pass."
    ),
]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    os.environ.setdefault(
        "GRPC_VERBOSITY", "ERROR"
    )  # a peer that stops is news for our log, not for gRPC's
    try:
        result = app(arguments, prog_name="lockstep", standalone_mode=False)
        return result if isinstance(result, int) else ExitCode.OK
    except typer.TyperException as error:
        if line := error.format_message():  # empty where the help was printed for want of a command
            error_line(f"{line} (see `lockstep --help`)")
        return ExitCode.USAGE
    except LockstepError as error:
        return _failed(error, str(error))
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in NODE_PACKAGES:
            return _failed(
                UsageError(), f"this command needs {error.name}: pip install 'lockstep[node]'"
            )
        return _failed(error, f"bug: {error}")
    except (KeyboardInterrupt, typer.Abort):
        error_line("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        return _failed(error, f"bug, please report it: {type(error).__name__}: {error}")


def _failed(error: Exception, line: str) -> int:
    code = exit_code(error)
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        logging.getLogger(__name__).exception("exit code %d", code)
    elif code is ExitCode.BUG:
        line += " (--debug shows where)"
    error_line(line)
    return code


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(f"lockstep {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    *,
    settings: Annotated[
        Path | None,
        typer.Option(
            envvar="LOCKSTEP_SETTINGS", help="Settings file: TOML, one table per command."
        ),
    ] = None,
    debug: Annotated[
        bool, typer.Option("--debug", help="Log everything; show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    log_to_standard_error(debug)
    if settings is not None:
        context.default_map = read_settings(settings, _options(typer.main.get_command(app)))


def _options(command: Any) -> dict[str, Any]:
    """Names of the options and arguments of every command below `command`."""
    if commands := getattr(command, "commands", None):
        return {name: _options(inner) for name, inner in commands.items()}
    return {parameter.name: None for parameter in command.params}


@app.command()
def demo(
    *,
    nodes: Annotated[
        int, typer.Option(envvar="LOCKSTEP_NODES", min=1, max=64, help="Node processes.")
    ] = 4,
    rounds: Annotated[
        int, typer.Option(envvar="LOCKSTEP_ROUNDS", min=1, help="Steps to train.")
    ] = 60,
    seed: Annotated[
        int, typer.Option(envvar="LOCKSTEP_SEED", min=0, help="Of weights and data order.")
    ] = 0,
    directory: Annotated[
        Path, typer.Option(envvar="LOCKSTEP_DIRECTORY", help="Everything goes here.")
    ] = Path("out/demo"),
    json: Annotated[
        str, typer.Option(help="Summary; - prints it. [default: DIRECTORY/summary.json]")
    ] = "",
) -> None:
    """A coordinator and several nodes train a small model on this machine."""
    from lockstep.cluster.demo import DemoSettings, run_demo

    run_demo(DemoSettings(directory, nodes, rounds, seed, json or str(directory / "summary.json")))


@app.command()
def coordinator(
    run_file: Annotated[
        Path | None,
        typer.Argument(metavar="RUN.toml", help="Run file (`lockstep init` writes one)."),
    ] = None,
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            envvar="LOCKSTEP_DIRECTORY",
            help="Journal. [default: beside the run file, without .toml]",
        ),
    ] = None,
    listen: Annotated[
        str, typer.Option(envvar="LOCKSTEP_LISTEN", help="Address for nodes; port 0: a free one.")
    ] = "127.0.0.1:50700",
    admin: AdminOption = "127.0.0.1:50701",
    check: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Only verify the journal of a stopped coordinator, and exit."
        ),
    ] = None,
    follow_parent: FollowParentOption = False,
) -> None:
    """Operate a run: keep its clock, admit nodes, commit rounds. Needs no torch."""
    from coordinator.settings import CoordinatorSettings
    from lockstep.commands.coordinator import check_directory, coordinate
    from lockstep.service.serve import ServeOptions

    if check is not None:
        check_directory(check)
        return
    if run_file is None:
        raise UsageError("expected a run file, or --check DIR; `lockstep init` writes a run file")
    place = directory or run_file.with_suffix(".coordinator")
    coordinate(
        run_file, CoordinatorSettings(place, listen), ServeOptions(place, admin, follow_parent)
    )


@app.command()
def join(
    url: UrlArgument,
    *,
    directory: Annotated[
        Path, typer.Option(envvar="LOCKSTEP_DIRECTORY", help="Identity, state, log; one node each.")
    ] = Path("~/.lockstep/node"),
    data: Annotated[
        Path | None,
        typer.Option(envvar="LOCKSTEP_DATA", help="Prepared data; none: the built-in corpus."),
    ] = None,
    corpora: Annotated[
        Path,
        typer.Option(
            envvar="LOCKSTEP_CORPORA", help="Built-in corpora, shared by the machine's nodes."
        ),
    ] = Path("~/.lockstep/corpora"),
    listen: Annotated[
        str,
        typer.Option(
            envvar="LOCKSTEP_LISTEN", help="HOST:PORT for peers; auto: towards the coordinator."
        ),
    ] = "auto",
    advertise: AdvertiseOption = None,
    links: LinksOption = "grpc",
    upload_limit: UploadLimitOption = 0,
    device: Annotated[
        str, typer.Option(envvar="LOCKSTEP_DEVICE", help="auto, cpu, cuda, cuda:1, ...")
    ] = "auto",
    threads: ThreadsOption = 0,
    micro_batch: MicroBatchOption = 8,
    save_every: Annotated[
        int,
        typer.Option(
            envvar="LOCKSTEP_SAVE_EVERY", min=1, help="Rounds between two saves of the state."
        ),
    ] = 20,
    name: Annotated[
        str, typer.Option(envvar="LOCKSTEP_NAME", help="What you call this node.")
    ] = "",
    admin: AdminOption = "127.0.0.1:0",
    follow_parent: FollowParentOption = False,
) -> None:
    """Give this machine to a run. Ctrl-C finishes the round and leaves; twice stops at once."""
    from lockstep.commands.join import join as join_run
    from lockstep.service.serve import ServeOptions
    from node.settings import NodeSettings

    place = directory.expanduser()
    settings = NodeSettings(
        coordinator=url,
        directory=place,
        data=data,
        corpora=corpora.expanduser(),
        listen=listen,
        advertise=tuple(advertise or ()),
        links=links,
        upload_limit=upload_limit,
        device=device,
        threads=threads,
        micro_batch=micro_batch,
        save_every=save_every,
        name=name,
    )
    join_run(settings, ServeOptions(place, admin, follow_parent))


@app.command()
def relay(
    url: UrlArgument,
    *,
    directory: Annotated[
        Path, typer.Option(envvar="LOCKSTEP_DIRECTORY", help="Identity and payloads.")
    ] = Path("~/.lockstep/relay"),
    listen: Annotated[
        str, typer.Option(envvar="LOCKSTEP_LISTEN", help="HOST:PORT for peers.")
    ] = "0.0.0.0:50710",
    advertise: AdvertiseOption = None,
    links: LinksOption = "grpc",
    upload_limit: UploadLimitOption = 0,
    peer_limit: Annotated[
        int,
        typer.Option(
            envvar="LOCKSTEP_PEER_LIMIT", min=0, help="Bytes per second for one peer; 0: no limit."
        ),
    ] = 0,
    disk: Annotated[
        int, typer.Option(envvar="LOCKSTEP_DISK", min=1, help="Bytes of payloads on disk at most.")
    ] = 4 * 1024**3,
    admin: AdminOption = "127.0.0.1:0",
    follow_parent: FollowParentOption = False,
) -> None:
    """Forward payloads between nodes that cannot dial each other. Needs a public address, no GPU
    and no torch."""
    from lockstep.commands.relay import relay as relay_run
    from lockstep.service.serve import ServeOptions
    from node.relay.process import RelaySettings

    place = directory.expanduser()
    settings = RelaySettings(
        coordinator=url,
        directory=place,
        listen=listen,
        advertise=tuple(advertise or ()),
        links=links,
        log_bytes_max=disk,
        upload_limit=upload_limit,
        peer_limit=peer_limit,
    )
    relay_run(settings, ServeOptions(place, admin, follow_parent))


@app.command()
def status(
    url: UrlArgument,
    *,
    json: Annotated[
        str | None, typer.Option(help="Write the whole status there; - prints it.")
    ] = None,
) -> None:
    """Show a run as its coordinator sees it."""
    from lockstep.commands.status import status as show

    show(url, json)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="File to write.")] = Path("run.toml"),
    *,
    defaults: Annotated[bool, typer.Option("--defaults", help="Ask nothing.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
) -> None:
    """Write a commented run file."""
    from lockstep.commands.init import ask, write_run_file
    from protocol.runfile import RunSpec

    write_run_file(path, RunSpec() if defaults else ask(path, force=force), force=force)
    typer.echo(f"wrote {path}; next: lockstep coordinator {path}")


app.command()(plan)


@app.command()
def verify(
    target: Annotated[
        str,
        typer.Argument(
            metavar="DIR|URL", help="A coordinator's or a demo's directory, or a live coordinator."
        ),
    ],
    *,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Published checkpoint. [default: DIR/checkpoint, if there is one]"),
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option("--from", help="Snapshot to begin at. [default: genesis]")
    ] = None,
    payloads: Annotated[
        list[Path] | None,
        typer.Option(help="Directory of payloads; repeatable. [default: the nodes' beside DIR]"),
    ] = None,
    threads: ThreadsOption = 0,
    json: Annotated[
        str | None, typer.Option(help="Write the findings there; - prints them.")
    ] = None,
) -> None:
    """Replay a run's log and compare it with what was published."""
    from lockstep.audit.verify import VerifySettings
    from lockstep.audit.verify import verify as verify_run

    verify_run(VerifySettings(target, checkpoint, snapshot, tuple(payloads or ()), threads, json))


@data_app.command()
def prepare(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...", help="Files, directories, globs, datasets:NAME, or builtin."
        ),
    ],
    *,
    out: Annotated[Path, typer.Option(envvar="LOCKSTEP_DATA", help="Directory to fill.")],
    tokenizer: Annotated[
        str,
        typer.Option(
            envvar="LOCKSTEP_TOKENIZER", help="bytes, a tokenizer.json, or bpe:SIZE to train one."
        ),
    ] = "bytes",
) -> None:
    """Turn text into the shards that nodes train on."""
    from lockstep.commands.data import prepare as prepare_data

    prepare_data(sources, out, tokenizer)


@app.command()
def generate(
    checkpoint: Annotated[Path, typer.Argument(metavar="DIR", help="Checkpoint directory.")],
    *,
    prompt: Annotated[str, typer.Option(help="Text to go on from.")] = "",
    tokens: Annotated[int, typer.Option(min=1, help="Tokens at most.")] = 200,
    temperature: Annotated[
        float, typer.Option(min=0.0, help="0: always the likeliest token.")
    ] = 0.8,
    seed: Annotated[int, typer.Option(envvar="LOCKSTEP_SEED", min=0, help="Of the sampling.")] = 0,
) -> None:
    """Let a trained checkpoint go on from a prompt."""
    from lockstep.commands.generate import print_text

    print_text(checkpoint, prompt, max_tokens=tokens, temperature=temperature, seed=seed)
