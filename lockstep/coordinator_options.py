"""Options that `lockstep coordinator` alone has."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep.options import NETWORK, PLACES

ADMITTED = "Who comes in, and who counts"

MODEL = "The model"

CHECKS = "Checks, which end the command"

RunFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="RUN.toml", show_default=False, help="Run file (`lockstep init` writes one)."
    ),
]

Directory = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="DIR",
        envvar="LOCKSTEP_DIRECTORY",
        show_default="RUN.coordinator, beside the run file",
        help="Directory of the journal and the key.",
    ),
]

Advertise = Annotated[
    str,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="HOST[:PORT]",
        envvar="LOCKSTEP_ADVERTISE",
        show_default="an address of this machine",
        help="Name or address at which volunteers reach this machine, for the link that joins.",
    ),
]

PublicPage = Annotated[
    str,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="HOST:PORT",
        envvar="LOCKSTEP_PUBLIC_PAGE",
        show_default="none",
        help="Address of a page of the run that everybody may read: without hosts, tokens and "
        "notes. Nodes are told where it is.",
    ),
]

PageUrl = Annotated[
    str,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="URL",
        envvar="LOCKSTEP_PAGE_URL",
        show_default="as --public-page serves it",
        help="Address at which others find the public page, as behind a proxy, or a copy of it "
        "(`lockstep run page`).",
    ),
]

Notify = Annotated[
    str,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="URL|COMMAND",
        envvar="LOCKSTEP_NOTIFY",
        show_default="none",
        help="URL that gets a POST, or command that is run, at an alarm, a stall, skipped rounds "
        "in a row, a demotion, a new checkpoint and the end.",
    ),
]

PlainText = Annotated[
    bool,
    typer.Option(
        "--plain-text",
        rich_help_panel=NETWORK,
        help="Speak without TLS on a network too, if you trust it. On loopback there is none.",
    ),
]

Vouch = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=ADMITTED,
        metavar="PEER_ID",
        envvar="LOCKSTEP_VOUCH",
        show_default=False,
        help='Node whose word counts in a run with trust = "public", by its id in `lockstep '
        "status`; may be given several times. A run remembers it.",
    ),
]

Admission = Annotated[
    str,
    typer.Option(
        "--admit",
        rich_help_panel=ADMITTED,
        metavar="RULE",
        envvar="LOCKSTEP_ADMIT",
        show_default="as before, open at first",
        help="Whom the run admits: open, token or list (see `lockstep run`).",
    ),
]

CheckpointRoom = Annotated[
    str,
    typer.Option(
        rich_help_panel=MODEL,
        metavar="SIZE",
        envvar="LOCKSTEP_CHECKPOINT_ROOM",
        help="Disk for checkpoints of the model, which members write and send; 0: keep none here. "
        "Room for two at least keeps the last one while the next comes.",
    ),
]

CheckpointsKept = Annotated[
    int,
    typer.Option(
        rich_help_panel=MODEL,
        metavar="N",
        envvar="LOCKSTEP_CHECKPOINTS_KEPT",
        min=1,
        help="Number of the newest checkpoints that stay.",
    ),
]

ForcedRestart = Annotated[
    bool,
    typer.Option(
        "--force",
        rich_help_panel=PLACES,
        help="With --restart-from: restart even if a node may hold the newest state.",
    ),
]

CheckDirectory = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=CHECKS,
        metavar="DIR",
        help="Verify the journal of a stopped coordinator in DIR, then exit.",
    ),
]

CheckRun = Annotated[
    bool,
    typer.Option(
        "--check-run",
        rich_help_panel=CHECKS,
        help="Try the run's model on one sample, then exit. Needs torch.",
    ),
]

NoTryModel = Annotated[
    bool,
    typer.Option(
        "--no-try-model",
        envvar="LOCKSTEP_NO_TRY_MODEL",
        help="Serve a new run without trying its model on one sample first, in a process of its "
        "own; arithmetic is checked all the same. Without torch nothing is tried.",
    ),
]
