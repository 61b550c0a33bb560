"""Options that `lockstep coordinator` alone has."""

from pathlib import Path
from typing import Annotated

from protocol.option import NETWORK, PLACES, Option

ADMITTED = "Who comes in, and who counts"

MODEL = "The model"

CHECKS = "Checks, which end the command"

RunFile = Annotated[
    Path | None,
    Option("RUN.toml", argument=True, shown=False, help="Run file (`lockstep init` writes one)."),
]

Directory = Annotated[
    Path | None,
    Option(
        "DIR",
        PLACES,
        shown="RUN.coordinator, beside the run file",
        help="Directory of the journal and the key.",
    ),
]

Listen = Annotated[
    str,
    Option(
        "HOST:PORT",
        NETWORK,
        help="Address for connections of nodes; port 0 takes a free one.",
    ),
]

Advertise = Annotated[
    str,
    Option(
        "HOST[:PORT]",
        NETWORK,
        shown="an address of this machine",
        help="Name or address at which volunteers reach this machine, for the link that joins.",
    ),
]

PublicPage = Annotated[
    str,
    Option(
        "HOST:PORT",
        PLACES,
        shown="none",
        help="Address of a page of the run that everybody may read: without hosts, tokens and "
        "notes. Nodes are told where it is.",
    ),
]

PageUrl = Annotated[
    str,
    Option(
        "URL",
        PLACES,
        shown="as --public-page serves it",
        help="Address at which others find the public page, as behind a proxy, or a copy of it "
        "(`lockstep run page`).",
    ),
]

Notify = Annotated[
    str,
    Option(
        "URL|COMMAND",
        PLACES,
        shown="none",
        help="URL that gets a POST, or command that is run, at an alarm, a stall, skipped rounds "
        "in a row, a demotion, a new checkpoint and the end.",
    ),
]

PlainText = Annotated[
    bool,
    Option(
        panel=NETWORK,
        variable=False,
        help="Speak without TLS on a network too, if you trust it. On loopback there is none.",
    ),
]

Vouch = Annotated[
    list[str] | None,
    Option(
        "PEER_ID",
        ADMITTED,
        shown=False,
        help='Node whose word counts in a run with trust = "public", by its id in `lockstep '
        "status`; may be given several times. A run remembers it.",
    ),
]

Admission = Annotated[
    str,
    Option(
        "RULE",
        ADMITTED,
        shown="as before, open at first",
        help="Whom the run admits: open, token or list (see `lockstep run`).",
    ),
]

CheckpointRoom = Annotated[
    str,
    Option(
        "SIZE",
        MODEL,
        help="Disk for checkpoints of the model, which members write and send; 0: keep none here. "
        "Room for two at least keeps the last one while the next comes.",
    ),
]

CheckpointsKept = Annotated[
    int,
    Option("N", MODEL, least=1, help="Number of the newest checkpoints that stay."),
]

ForcedRestart = Annotated[
    bool,
    Option(
        panel=PLACES,
        variable=False,
        help="With --restart-from: restart even if a node may hold the newest state.",
    ),
]

CheckDirectory = Annotated[
    Path | None,
    Option(
        "DIR",
        CHECKS,
        variable=False,
        help="Verify the journal of a stopped coordinator in DIR, then exit.",
    ),
]

CheckRun = Annotated[
    bool,
    Option(
        panel=CHECKS,
        variable=False,
        help="Try the run's model on one sample, then exit. Needs torch.",
    ),
]

NoTryModel = Annotated[
    bool,
    Option(
        help="Serve a new run without trying its model on one sample first, in a process of its "
        "own; arithmetic is checked all the same. Without torch nothing is tried."
    ),
]
