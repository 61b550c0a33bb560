"""`lockstep auditor` and `lockstep verify`: their options. The rest is imported when they run."""

from pathlib import Path
from typing import Annotated

import typer

from lockstep import options

Begin = Annotated[
    Path | None,
    typer.Option(
        "--from",
        metavar="FILE",
        show_default="genesis",
        help="Snapshot to begin at, when the first payloads are gone and nothing is saved yet.",
    ),
]

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="DIR|URL",
        help="Directory of a coordinator or a demo, or the address of a live coordinator.",
        show_default=False,
    ),
]

Proof = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        show_default=False,
        help="In place of a run: check a proof that its coordinator signed two histories.",
    ),
]


def auditor(
    url: options.Url,
    *,
    directory: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            envvar="LOCKSTEP_DIRECTORY",
            show_default="~/.lockstep/auditor, with a directory for each run",
            help="Directory of this auditor's identity, state and archive, for one run.",
        ),
    ] = None,
    listen: options.Listen = "0.0.0.0:50720",
    advertise: options.Advertise = None,
    links: options.Links = "grpc",
    upload_limit: options.UploadLimit = 0,
    peer_limit: options.PeerLimit = 0,
    disk: options.Disk = 64 * 1024**3,
    snapshot: Begin = None,
    token: options.Token = "",
    p2pd_sha256: options.P2pdSha256 = "",
    threads: options.Threads = 0,
    save_every: options.SaveEvery = 50,
    data: options.Data = None,
    work_share: options.WorkShare = 2.0,
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Replay a run while it goes on, say where it differs, and keep all its payloads.

    Where it has the run's data it computes some payloads again, and says whose author did not do
    its work. Needs torch, no GPU. Goes on after a difference, with an alarm, and then ends with 9.
    """
    from lockstep.audit.auditor import AuditorSettings, audit
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions
    from node.relay.settings import RelaySettings
    from protocol.border.join_link import split_token

    url, token = split_token(url, token)
    place = (directory or Path("~/.lockstep/auditor")).expanduser()
    relay = RelaySettings(
        coordinator=url,
        directory=place,
        listen=listen,
        advertise=tuple(advertise or ()),
        links=links,
        log_bytes_max=disk,
        upload_limit=upload_limit,
        peer_limit=peer_limit,
        token=token,
        p2pd_sha256=p2pd_sha256,
    )
    share = work_share / 100
    settings = AuditorSettings(relay, threads, snapshot, save_every, data, share)
    home = Home(place, only=directory is not None)
    audit(settings, ServeOptions(place, admin, follow_parent), home)


def verify(
    target: Target = None,
    *,
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="that of a demo's directory",
            help="Published checkpoint to compare.",
        ),
    ] = None,
    snapshot: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="PATH",
            show_default="genesis",
            help="Snapshot or checkpoint to begin at.",
        ),
    ] = None,
    payloads: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="DIR",
            show_default="those of the nodes beside DIR",
            help="Directory of payloads; repeatable.",
        ),
    ] = None,
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="DATA",
            show_default="evidence is not computed again",
            help="The run's prepared data: compute again the evidence against authors.",
        ),
    ] = None,
    proof: Proof = None,
    threads: options.Threads = 0,
    json: options.JsonFile = None,
) -> None:
    """Replay a run's log and compare the result with its published checkpoint."""
    from lockstep.exit_codes import UsageError

    if (target is None) == (proof is None):
        raise UsageError("expected a directory or an address, or a file after --proof, one of them")
    if target is None:
        from lockstep.audit.two_histories import verify_proof

        assert proof is not None, "one of the two is there"
        verify_proof(proof, json)
        return
    from lockstep.audit.verify import VerifySettings
    from lockstep.audit.verify import verify as verify_run

    places = tuple(payloads or ())
    verify_run(VerifySettings(target, checkpoint, snapshot, places, threads, json, work))
