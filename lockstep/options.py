"""Options of the command that several commands have, or that need more than a line of help.

Every option has a help text that begins with its noun, and a default that the help shows: typer
shows plain ones by itself; `show_default` words those that depend on something else. Square
brackets do not belong into a help text, rich takes them for markup.
"""

from pathlib import Path
from typing import Annotated

import typer

USE = "What it may use"

NETWORK = "Network"

DATA = "Training data"

PLACES = "Where things are kept and shown"

Url = Annotated[
    str,
    typer.Argument(
        metavar="URL",
        envvar="LOCKSTEP_COORDINATOR",
        help="Link of the run, lockstep://HOST:PORT/RUN#KEY in quotes, or HOST:PORT.",
    ),
]

JsonFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="File for everything that is shown, as JSON; - prints it."),
]

Summary = Annotated[
    str,
    typer.Option(
        metavar="FILE", show_default="DIR/summary.json", help="File for the summary; - prints it."
    ),
]

Algorithm = Annotated[
    str,
    typer.Option(metavar="NAME", help="Algorithm of the run: local_steps, demo or gossip-adam."),
]

ChosenAlgorithm = Annotated[
    str,
    typer.Option(
        "--algorithm",
        metavar="NAME",
        show_default="local_steps, or as asked",
        help="Algorithm of the run: local_steps, demo or gossip-adam.",
    ),
]

# ---- long-lived processes

Listen = Annotated[
    str,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="HOST:PORT",
        envvar="LOCKSTEP_LISTEN",
        help="Address for connections of nodes; port 0 takes a free one.",
    ),
]
Publish = Annotated[
    str,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="URL",
        envvar="LOCKSTEP_PUBLISH",
        show_default="nowhere",
        help="Directory or fsspec URL (such as hf://ACCOUNT/REPOSITORY, with HF_TOKEN) that gets "
        "every checkpoint of the run, with this node's word for it.",
    ),
]

NodeListen = Annotated[
    str,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="HOST:PORT",
        envvar="LOCKSTEP_LISTEN",
        help="Address for connections of peers; auto: the interface that leads to the coordinator.",
    ),
]
Advertise = Annotated[
    list[str] | None,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="ADDRESS",
        envvar="LOCKSTEP_ADVERTISE",
        show_default="found out at the start",
        help="Address at which peers reach this machine; repeatable.",
    ),
]
Links = Annotated[
    str,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="KINDS",
        envvar="LOCKSTEP_LINKS",
        help="Transports to peers: grpc, libp2p or grpc,libp2p (the preferred one first).",
    ),
]
UploadLimit = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="BYTES",
        envvar="LOCKSTEP_UPLOAD_LIMIT",
        min=0,
        help="Limit on the upload to all peers together, in bytes per second; 0: none.",
    ),
]
DownloadLimit = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="BYTES",
        envvar="LOCKSTEP_DOWNLOAD_LIMIT",
        min=0,
        help="Limit on what comes from peers and from the data's server together, in bytes per "
        "second; 0: none.",
    ),
]
PeerLimit = Annotated[
    int,
    typer.Option(
        rich_help_panel=NETWORK,
        metavar="BYTES",
        envvar="LOCKSTEP_PEER_LIMIT",
        min=0,
        help="Limit on the upload to one peer, in bytes per second; 0: none.",
    ),
]
DialPrivate = Annotated[
    bool,
    typer.Option(
        "--dial-private",
        rich_help_panel=NETWORK,
        help="Dial private addresses that members announce though the coordinator is outside: for "
        "machines of yours behind one router.",
    ),
]
P2pdSha256 = Annotated[
    str,
    typer.Option(
        "--p2pd-sha256",
        rich_help_panel=NETWORK,
        metavar="DIGEST",
        envvar="LOCKSTEP_P2PD_SHA256",
        show_default="that of hivemind's release",
        help="SHA-256 of the libp2p daemon that may be started, in hexadecimal.",
    ),
]
MemoryLimit = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="BYTES",
        envvar="LOCKSTEP_MEMORY",
        min=0,
        help="Memory that the node may take, Python and torch (0.5 GB) included; a run that "
        "needs more is refused. 0: the machine's.",
    ),
]
DiskLimit = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="BYTES",
        envvar="LOCKSTEP_DISK",
        min=0,
        help="Disk that the run may take; a run that may need more is refused. 0: what is free.",
    ),
]
Disk = Annotated[
    int,
    typer.Option(
        metavar="BYTES",
        envvar="LOCKSTEP_DISK",
        min=1,
        help="Limit on the payloads that are kept on disk, in bytes.",
    ),
]
Archive = Annotated[
    bool,
    typer.Option(
        "--archive",
        envvar="LOCKSTEP_ARCHIVE",
        help="Keep every committed payload, as far as --disk reaches, so that the run can be "
        "audited from its first round.",
    ),
]
Admin = Annotated[
    str,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="HOST:PORT",
        envvar="LOCKSTEP_ADMIN",
        help="Address of the admin port (metrics, health, status); port 0 takes a free one.",
    ),
]
FollowParent = Annotated[bool, typer.Option("--follow-parent", hidden=True)]

# ---- nodes

Home = Annotated[
    Path,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="DIR",
        envvar="LOCKSTEP_HOME",
        help="Directory of this computer's identity, with a directory for each run.",
    ),
]
NodeDirectory = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="DIR",
        envvar="LOCKSTEP_DIRECTORY",
        show_default="HOME/runs/RUN",
        help="Directory of one run and an identity of its own, in place of the home's.",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=DATA,
        metavar="DIR",
        envvar="LOCKSTEP_DATA",
        show_default="the run's own data",
        help="Directory of prepared data (`lockstep data prepare` fills one).",
    ),
]
DataUrl = Annotated[
    str,
    typer.Option(
        rich_help_panel=DATA,
        metavar="URL",
        envvar="LOCKSTEP_DATA_URL",
        show_default="as in the run file",
        help="URL of published data (http, https, s3, hf, file), whose ranges are fetched.",
    ),
]
DataCache = Annotated[
    int,
    typer.Option(
        rich_help_panel=DATA,
        metavar="BYTES",
        envvar="LOCKSTEP_DATA_CACHE",
        min=10**6,
        help="Limit on the ranges of published data that are kept on disk, in bytes.",
    ),
]
WorkShare = Annotated[
    float,
    typer.Option(
        metavar="PERCENT",
        min=0,
        max=100,
        help="Part of the run's compute that the audit of work may take; 0: none.",
    ),
]
Corpora = Annotated[
    Path | None,
    typer.Option(
        rich_help_panel=DATA,
        metavar="DIR",
        envvar="LOCKSTEP_CORPORA",
        show_default="HOME/corpora",
        help="Directory of built-in corpora, shared by all nodes of this machine.",
    ),
]
Device = Annotated[
    str,
    typer.Option(
        rich_help_panel=USE,
        metavar="NAME",
        envvar="LOCKSTEP_DEVICE",
        help="Device that trains: cpu, cuda, cuda:1, several with commas; all: every GPU; "
        "auto: the first one, if there is one.",
    ),
]
Threads = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="N",
        envvar="LOCKSTEP_THREADS",
        min=0,
        help="CPU threads; 0: as many as cores.",
    ),
]
MicroBatch = Annotated[
    int | None,
    typer.Option(
        rich_help_panel=USE,
        metavar="N",
        envvar="LOCKSTEP_MICRO_BATCH",
        min=1,
        show_default="measured at the first start",
        help="Samples in one forward and backward pass; fewer take less memory.",
    ),
]
SaveEvery = Annotated[
    int,
    typer.Option(
        rich_help_panel=PLACES,
        metavar="ROUNDS",
        envvar="LOCKSTEP_SAVE_EVERY",
        min=1,
        help="Rounds between two saves of the state.",
    ),
]
Name = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="LOCKSTEP_NAME",
        show_default="none",
        help="Name of this node in tables, at most 64 bytes.",
    ),
]

Token = Annotated[
    str,
    typer.Option(
        metavar="TOKEN",
        envvar="LOCKSTEP_TOKEN",
        show_default="that of the link, if any",
        help="Secret from the operator, for a run that admits by token; needed once for a key.",
    ),
]
Checkpoint = Annotated[
    Path | None,
    typer.Option(
        "--restart-from",
        rich_help_panel=PLACES,
        metavar="CHECKPOINT",
        show_default=False,
        help="Checkpoint, or snapshot file, from which a run goes on whose newest state is lost.",
    ),
]
Yes = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        envvar="LOCKSTEP_YES",
        help="Agree to what the run uses of this computer without being asked; it is asked once "
        "for a run, and never with --directory.",
    ),
]

# ---- runs on this machine

Nodes = Annotated[
    int,
    typer.Option(
        metavar="N", envvar="LOCKSTEP_NODES", min=1, max=64, help="Number of node processes."
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        metavar="N", envvar="LOCKSTEP_SEED", min=0, help="Seed of everything that is drawn."
    ),
]

SettingsFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="LOCKSTEP_SETTINGS",
        help="Settings file: TOML with one table per command.",
    ),
]

Published = Annotated[
    Path | None,
    typer.Option(
        "--from", metavar="CONFIG.json", help="Published model configuration. Needs torch."
    ),
]
ProfilesFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="LOCKSTEP_PROFILES_FILE",
        show_default="the built-in one",
        help="File of link profiles.",
    ),
]
