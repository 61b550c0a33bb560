"""The `lockstep` command: its commands, the sources of their settings, and the ends of errors.

Commands are thin: each names its options and calls one function of one module. The module is
imported only then: `lockstep --help` is quick, and a command that needs no torch runs without it.
Settings come from the default, the settings file, the environment and the flag, the later winning
(`lockstep.settings_file`). An error ends as one line on standard error and a documented exit code
(`lockstep.exit_codes`); --debug shows its origin.
"""

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from coordinator.settings import CoordinatorSettings
from lockstep import __version__, options
from lockstep.audit.cli import auditor, verify
from lockstep.cluster.settings import ALGORITHM, DemoOptions
from lockstep.commands import volunteer_options
from lockstep.commands.plan_options import plan
from lockstep.commands.run.options import invite, run_app
from lockstep.console import error_line, output, own_command
from lockstep.declared import CommandGroup, Here, takes
from lockstep.exit_codes import MEANINGS, ExitCode, UsageError, exit_code
from lockstep.own_packages import EXTRAS, how_to_add
from lockstep.service.logs import log_to_standard_error
from lockstep.settings_file import option_names, read_settings
from lockstep.wan.cli import wan_app
from node.relay.settings import RelaySettings
from protocol.errors import LockstepError, SettingsError
from protocol.limits import MEMBERS_MAX
from protocol.option import PLACES, Option

_EPILOG = "\n".join(
    ["Exit codes:", *(f"{code.value:3d}  {meaning}" for code, meaning in MEANINGS.items())]
)

HOMELESS = (
    "expected a home directory, and this account has none: set HOME to a directory that it may "
    "write, or name one with --home or --directory"
)
"""The cure of an account without a home, such as a container's user that is a mere number."""

app = CommandGroup(
    name="lockstep",
    help="Train one neural network on many people's computers; every copy of it stays equal, bit "
    "for bit.",
    epilog=_EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

data_app = CommandGroup(name="data", help="Prepare training data.", no_args_is_help=True)

VOLUNTEER = "Give a machine to a run"

OPERATOR = "Run one"

RESEARCHER = "Try, predict and check"

CHECKS = "Checks, which end the command"

for volunteer_command in volunteer_options.COMMANDS:
    app.command(rich_help_panel=VOLUNTEER)(volunteer_command)
for volunteer_group in volunteer_options.GROUPS:
    app.add_typer(volunteer_group, rich_help_panel=VOLUNTEER)
for operator_group in (run_app, data_app):
    app.add_typer(operator_group, rich_help_panel=OPERATOR)
app.add_typer(wan_app, rich_help_panel=RESEARCHER)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    # A peer that stops, or a port that is taken, belongs into our line, not into gRPC's.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        result = app(arguments, prog_name="lockstep", standalone_mode=False)
        if result == ExitCode.INTERRUPTED:  # typer turns Ctrl-C into this code without a word
            error_line("interrupted")
        return result if isinstance(result, int) else ExitCode.OK
    except typer.TyperException as error:
        return _wrong_command_line(error)
    except LockstepError as error:
        return _failed(error, str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if extra := next((extra for extra, names in EXTRAS.items() if package in names), ""):
            need = f"this command needs {package}: {how_to_add(extra)}"
            return _failed(UsageError(), need)
        return _failed(error, f"bug: {error}")
    except (KeyboardInterrupt, typer.Abort):
        error_line("interrupted")
        return ExitCode.INTERRUPTED
    except Exception as error:
        if isinstance(error, RuntimeError) and "home directory" in str(error):
            return _failed(SettingsError(), HOMELESS)
        return _failed(error, f"bug, please report it: {type(error).__name__}: {error}")


def _wrong_command_line(error: typer.TyperException) -> int:
    """Prints what is wrong; a value out of bounds is a wrong setting, wherever it stands."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    words = context.command_path.partition(" ")[2] if context else ""
    hint = " ".join(filter(None, (own_command(), words, "--help")))
    line, code = error.format_message(), ExitCode.USAGE
    if isinstance(error, typer.BadParameter) and parameter and context:
        source = context.get_parameter_source(parameter.name)
        if type(error).__name__ != "MissingParameter":
            code, line = ExitCode.SETTINGS, line + _found(error)
        if source and source.name == "DEFAULT_MAP":
            line = f"{context.find_root().params['settings']}: {line}"
    if line:  # empty where the help was printed for want of a command
        error_line(f"{line} (see `{hint}`)")
    return code


def _found(error: Exception) -> str:
    """The value that was refused, where what judged it says so; a prefix of a long one."""
    errors = getattr(error.__cause__, "errors", None)
    return f", found {errors()[0]['input']!r:.60}" if errors else ""


def _failed(error: Exception, line: str) -> int:
    code = exit_code(error)
    if logging.getLogger().isEnabledFor(logging.DEBUG):
        fields = {"exit_code": int(code)}
        logging.getLogger(__name__).error("command failed", exc_info=error, extra=fields)
    elif code is ExitCode.BUG:
        line += " (--debug shows where)"
    error_line(line)
    return code


def _print_version(asked: bool) -> None:
    if asked:
        output.print(f"lockstep {__version__}")
        raise typer.Exit


@app.callback()
@takes
def _root(
    context: typer.Context,
    *,
    settings: Annotated[
        Path | None, Option("FILE", help="Settings file: TOML with one table per command.")
    ] = None,
    debug: Annotated[
        bool, Option(variable=False, help="Log everything; show the traceback of an error.")
    ] = False,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    log_to_standard_error(debug)
    if settings is not None:
        context.default_map = read_settings(settings, option_names(typer.main.get_command(app)))


def demo(
    settings: DemoOptions,
    *,
    json: Annotated[
        str,
        Option(
            "FILE",
            shown="DIR/summary.json",
            variable=False,
            help="File for the summary; - prints it.",
        ),
    ] = "",
) -> None:
    """Train a small model with a coordinator and several nodes on this machine."""
    from lockstep.cluster.demo import run_demo

    run_demo(replace(settings, json_path=json or str(settings.directory / "summary.json")))


@app.command(rich_help_panel=OPERATOR)
def init(
    path: Annotated[Path, Option("PATH", argument=True, help="File to write.")] = Path("run.toml"),
    *,
    public: Annotated[
        bool, Option(variable=False, help="Write it for strangers: they work, and do not decide.")
    ] = False,
    defaults: Annotated[bool, Option(variable=False, help="Ask no questions.")] = False,
    force: Annotated[bool, Option(variable=False, help="Replace the file if it exists.")] = False,
    published: Annotated[
        Path | None,
        Option(
            "CONFIG.json",
            names=("--from",),
            variable=False,
            help="Published model configuration. Needs torch.",
        ),
    ] = None,
    algorithm: Annotated[str, replace(ALGORITHM, shown="local_steps, or as asked")] = "",
    nodes: Annotated[
        int,
        Option(
            "N",
            shown="a few",
            least=0,
            most=MEMBERS_MAX,
            variable=False,
            help="Nodes that are expected at a time; so many that some should add for all do.",
        ),
    ] = 0,
) -> None:
    """Write a commented run file, and print what comes next."""
    from lockstep.commands.init import init as write

    write(path, published, algorithm, nodes, public=public, defaults=defaults, force=force)


@app.command(rich_help_panel=OPERATOR)
def coordinator(
    run_file: Annotated[
        Path | None,
        Option(
            "RUN.toml", argument=True, shown=False, help="Run file (`lockstep init` writes one)."
        ),
    ] = None,
    *,
    directory: Annotated[
        Path | None,
        Option(
            "DIR",
            PLACES,
            shown="RUN.coordinator, beside the run file",
            help="Directory of the journal and the key.",
        ),
    ] = None,
    settings: Annotated[CoordinatorSettings, Here(defaults={"checkpoint_room": "2GB"})],
    admin: options.Admin = "127.0.0.1:50701",
    check: Annotated[
        Path | None,
        Option(
            "DIR", CHECKS, variable=False, help="Verify a stopped coordinator's journal, and exit."
        ),
    ] = None,
    check_run: Annotated[
        bool,
        Option(
            panel=CHECKS,
            variable=False,
            help="Try the run's model on one sample, then exit. Needs torch.",
        ),
    ] = False,
    no_try_model: Annotated[
        bool,
        Option(
            help="Serve a new run without trying its model on one sample first, in a process of "
            "its own; arithmetic is checked all the same. Without torch nothing is tried."
        ),
    ] = False,
    follow_parent: options.FollowParent = False,
) -> None:
    """Operate a run: keep its clock, admit nodes, commit rounds. Needs no torch."""
    from lockstep.commands.check_run import check_file
    from lockstep.commands.coordinator import check_directory, coordinate
    from lockstep.service.serve import ServeOptions

    if check is not None:
        check_directory(check)
        return
    run_file = _judged(run_file, settings)
    if check_run:
        check_file(run_file)
        return
    place = directory or run_file.with_suffix(".coordinator")
    settings = replace(settings, directory=place, software=f"lockstep {__version__}")
    serving = ServeOptions(place, admin, follow_parent)
    coordinate(run_file, settings, serving, try_model=not no_try_model)


def _judged(run_file: Path | None, settings: CoordinatorSettings) -> Path:
    """The run file of a coordinator; `UsageError` where there is none, or options lack another."""
    if run_file is None:
        raise UsageError(
            f"expected a run file (`{own_command()} init` writes one) or --check DIR, got neither"
        )
    if settings.force and settings.restart_from is None:
        raise UsageError("expected --restart-from CHECKPOINT with --force, got none")
    return run_file


@app.command(rich_help_panel=OPERATOR)
def relay(
    settings: RelaySettings,
    *,
    directory: Annotated[
        Path | None,
        Option(
            "DIR",
            shown="~/.lockstep/relay, with a directory for each run",
            help="Directory of this relay's identity and payloads, for one run.",
        ),
    ] = None,
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Forward payloads between nodes that cannot dial each other.

    Needs a public address, but no GPU and no torch. With --sums it adds payloads for all, too.
    """
    from lockstep.commands.relay import relay as relay_run
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions

    place = (directory or Path("~/.lockstep/relay")).expanduser()
    home = Home(place, only=directory is not None)
    relay_run(settings.at(place), ServeOptions(place, admin, follow_parent), home)


@app.command(rich_help_panel=OPERATOR)
def status(
    url: options.Url,
    *,
    json: options.JsonFile = None,
    watching: Annotated[
        bool,
        Option(
            names=("--watch",),
            variable=False,
            help="Show it again and again, until the run ends or Ctrl-C.",
        ),
    ] = False,
) -> None:
    """Show a run as its coordinator sees it."""
    from lockstep.commands.status import status as show
    from lockstep.commands.status_watch import watch

    if not watching:
        show(url, json)
    elif json is not None:
        raise UsageError("expected --watch or --json, got both")
    else:
        watch(url)


@data_app.command()
def prepare(
    sources: Annotated[
        list[str],
        Option(
            "SOURCE...",
            argument=True,
            help="Files, directories, globs, rows:FILE:COLUMN, "
            "datasets:NAME (@REVISION, :config=C, :split=S, :column=T may follow), or builtin.",
        ),
    ],
    *,
    out: Annotated[Path, Option("DIR", variable="LOCKSTEP_DATA", help="Directory to fill.")],
    tokenizer: Annotated[
        str,
        Option("NAME", help="Tokenizer: bytes, a tokenizer.json file, or bpe:SIZE to train one."),
    ] = "bytes",
) -> None:
    """Turn text into the shards that nodes train on."""
    from lockstep.commands.data import prepare as prepare_data

    prepare_data(sources, out, tokenizer)


@data_app.command()
def publish(
    directory: Annotated[
        Path,
        Option("DIR", argument=True, help="Directory that `lockstep data prepare` filled."),
    ],
    url: Annotated[
        str,
        Option("URL", argument=True, help="Directory or fsspec URL (s3, hf, gs) for the data."),
    ],
) -> None:
    """Copy prepared data to where nodes fetch the parts that they train on."""
    from lockstep.commands.data import publish as publish_data

    publish_data(directory, url)


for operator_command in (auditor, invite):
    app.command(rich_help_panel=OPERATOR)(operator_command)
for research_command in (demo, plan, verify, volunteer_options.generate):
    app.command(rich_help_panel=RESEARCHER)(research_command)
