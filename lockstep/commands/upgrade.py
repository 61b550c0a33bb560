"""`lockstep upgrade [--check LINK]`: whether this release fits a run, and how to get another one.

Nobody but the run's coordinator is asked. A release fits where it speaks the coordinator's protocol
version and knows the run file; releases that do work together in one run.
"""

from lockstep import __version__
from lockstep.commands.status import ask
from lockstep.console import output
from lockstep.own_packages import how_to_upgrade
from lockstep.service.contact import ask_run
from protocol.border.join_link import JoinLink, parse_link
from protocol.border.text import clean_document
from protocol.errors import SettingsError, VersionError

OWN = f"lockstep {__version__}"
"""This release."""


def upgrade(url: str) -> None:
    """Says whether this installation fits the run of a link; without one, how to upgrade it."""
    if url:
        output.print(fits(parse_link(url)), soft_wrap=True)
    else:
        output.print(f"this is {OWN}; to upgrade: {how_to_upgrade()}", soft_wrap=True)


def fits(link: JoinLink) -> str:
    """The good news in a line; `VersionError` for a run that this installation does not fit, and
    the errors of a first contact.
    """
    document = clean_document(ask(link.text()))
    theirs = str(document.get("software") or "a release that does not tell its name")
    try:
        info = ask_run(link)
    except (SettingsError, VersionError) as error:
        if isinstance(error, SettingsError) and theirs == OWN:
            raise  # it is not the release
        raise VersionError(
            f"{OWN} does not fit this run, whose coordinator is {theirs}: {error}; to upgrade this "
            f"installation: {how_to_upgrade()}"
        ) from None
    same = "the coordinator's release too" if theirs == OWN else f"its coordinator is {theirs}"
    return f"{OWN} fits run {info.spec.name} ({info.run_id[:8]}): {same}"
