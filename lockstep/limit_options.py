"""The options that limit when, and how much of, a volunteer's machine works: of `lockstep join`,
and of `lockstep limit` while a node runs. Their bounds are those of `lockstep.volunteer.limits`.
"""

from typing import Annotated

import typer

from lockstep.options import USE
from lockstep.volunteer.limits import BOUNDS

Nice = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="N",
        envvar="LOCKSTEP_NICE",
        min=0,
        max=19,
        help="Niceness: other programs go first; 0 competes as an equal.",
    ),
]
Hours = Annotated[
    str,
    typer.Option(
        rich_help_panel=USE,
        metavar="WINDOWS",
        envvar="LOCKSTEP_HOURS",
        show_default="always",
        help="Times of work, such as 'mon-fri 18:00-08:00, sat-sun 00:00-24:00'.",
    ),
]
DailyTransfer = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="BYTES",
        envvar="LOCKSTEP_DAILY_TRANSFER",
        min=BOUNDS["daily_transfer"][0],
        max=BOUNDS["daily_transfer"][1],
        help="Limit on the bytes of a day, up and down together; 0: none.",
    ),
]
OnBattery = Annotated[
    bool,
    typer.Option(
        "--on-battery",
        rich_help_panel=USE,
        envvar="LOCKSTEP_ON_BATTERY",
        help="Work on battery too, in place of resting.",
    ),
]
WhenIdle = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="MINUTES",
        envvar="LOCKSTEP_WHEN_IDLE",
        min=BOUNDS["when_idle"][0],
        max=BOUNDS["when_idle"][1],
        help="Work when nobody has used keyboard or mouse for this time; 0: beside a person too.",
    ),
]
OtherLoad = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="PERCENT",
        envvar="LOCKSTEP_OTHER_LOAD",
        min=BOUNDS["other_load"][0],
        max=BOUNDS["other_load"][1],
        help="Rest while other programs use more of all cores, or of a GPU; 0: never for that.",
    ),
]
DutyCycle = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="PERCENT",
        envvar="LOCKSTEP_DUTY_CYCLE",
        min=BOUNDS["duty_cycle"][0],
        max=BOUNDS["duty_cycle"][1],
        help="Limit on the part of the time in which this machine computes.",
    ),
]
GpuMemory = Annotated[
    int,
    typer.Option(
        rich_help_panel=USE,
        metavar="PERCENT",
        envvar="LOCKSTEP_GPU_MEMORY",
        min=BOUNDS["gpu_memory"][0],
        max=BOUNDS["gpu_memory"][1],
        help="Limit on the part of each GPU's memory that the node takes.",
    ),
]

# ---- while a node runs: what is not named stays

_STAYS = "as it is"

NewHours = Annotated[
    str | None,
    typer.Option(
        "--hours",
        metavar="WINDOWS",
        show_default=_STAYS,
        help="Times of work, such as 'mon-fri 18:00-08:00'; '' for always.",
    ),
]
NewDailyTransfer = Annotated[
    int | None,
    typer.Option(
        "--daily-transfer",
        metavar="BYTES",
        show_default=_STAYS,
        help="Limit on the bytes of a day; 0: none.",
    ),
]
NewUploadLimit = Annotated[
    int | None,
    typer.Option(
        "--upload-limit",
        metavar="BYTES",
        show_default=_STAYS,
        help="Limit on the upload to all peers together, in bytes per second; 0: none.",
    ),
]
NewDownloadLimit = Annotated[
    int | None,
    typer.Option(
        "--download-limit",
        metavar="BYTES",
        show_default=_STAYS,
        help="Limit on what comes from peers and the data's server, in bytes per second; 0: none.",
    ),
]
NewOnBattery = Annotated[
    bool | None,
    typer.Option(
        "--on-battery/--no-on-battery", show_default=_STAYS, help="Whether to work on battery."
    ),
]
NewWhenIdle = Annotated[
    int | None,
    typer.Option(
        "--when-idle",
        metavar="MINUTES",
        show_default=_STAYS,
        help="Minutes without keyboard or mouse before the node works; 0: none.",
    ),
]
NewOtherLoad = Annotated[
    int | None,
    typer.Option(
        "--other-load",
        metavar="PERCENT",
        show_default=_STAYS,
        help="Load of other programs above which the node rests; 0: any is allowed.",
    ),
]
NewDutyCycle = Annotated[
    int | None,
    typer.Option(
        "--duty-cycle",
        metavar="PERCENT",
        show_default=_STAYS,
        help="Limit on the part of the time in which the node computes.",
    ),
]
NewGpuMemory = Annotated[
    int | None,
    typer.Option(
        "--gpu-memory",
        metavar="PERCENT",
        show_default=_STAYS,
        help="Limit on the part of a GPU's memory that the node takes.",
    ),
]
