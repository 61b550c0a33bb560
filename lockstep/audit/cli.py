"""`lockstep auditor` and `lockstep verify`: their options. The rest is imported when they run."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

from lockstep import options
from lockstep.audit.settings import AuditorSettings, VerifySettings
from protocol.option import Option

Directory = Annotated[
    Path | None,
    Option(
        "DIR",
        shown="~/.lockstep/auditor, with a directory for each run",
        help="Directory of this auditor's identity, state and archive, for one run.",
    ),
]


def auditor(
    settings: AuditorSettings,
    *,
    directory: Directory = None,
    admin: options.Admin = "127.0.0.1:0",
    follow_parent: options.FollowParent = False,
) -> None:
    """Replay a run while it goes on, say where it differs, and keep all its payloads.

    Where it has the run's data it computes some payloads again, and says whose author did not do
    its work. Needs torch, no GPU. Goes on after a difference, with an alarm, and then ends with 9.
    """
    from lockstep.audit.process import audit
    from lockstep.service.home import Home
    from lockstep.service.serve import ServeOptions

    place = (directory or Path("~/.lockstep/auditor")).expanduser()
    settings = replace(settings, relay=settings.relay.at(place))
    home = Home(place, only=directory is not None)
    audit(settings, ServeOptions(place, admin, follow_parent), home)


def verify(settings: VerifySettings, *, json: options.JsonFile = None) -> None:
    """Replay a run's log and compare the result with its published checkpoint."""
    from lockstep.exit_codes import UsageError

    if bool(settings.target) == (settings.proof is not None):
        raise UsageError("expected a directory or an address, or a file after --proof, one of them")
    if settings.proof is not None:
        from lockstep.audit.two_histories import verify_proof

        verify_proof(settings.proof, json)
        return
    from lockstep.audit.verify import verify as verify_run

    verify_run(replace(settings, json_path=json))
