"""Settings that the operator of a coordinator chooses on this machine. Settings that all nodes of a
run agree on are in the run file.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, get_args

from coordinator.machine.events.acts import Mode
from coordinator.machine.events.inputs import RestartAsked
from protocol.addresses import check_listen, is_page, parse_address
from protocol.border.join_link import is_loopback
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import parse_peer_id
from protocol.option import NETWORK, PLACES, RESTART_FROM, Option, check_bounds

ADMITTED = "Who comes in, and who counts"

MODEL = "The model"

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?)\s*([KMGT]?)B?", re.IGNORECASE)


def room(text: str) -> int:
    """The bytes of 500MB, 2GB, 1.5TB or a plain number; `SettingsError` for a text that is none."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise SettingsError(
            f"--checkpoint-room: expected a size such as 500MB, 2GB or 0, found {text[:40]!r}"
        )
    return int(float(found[1]) * _UNITS[found[2].upper()])


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of one coordinator process."""

    directory: Path = Path()
    """Directory of the journal; the same directory continues the same run."""

    listen: Annotated[str, Option("HOST:PORT", NETWORK)] = "127.0.0.1:50700"
    """Address for connections of nodes; port 0 takes a free one."""

    advertise: Annotated[
        str, Option("HOST[:PORT]", NETWORK, shown="an address of this machine")
    ] = ""
    """Name or address at which volunteers reach this machine, for the link that joins."""

    plain_text: Annotated[bool, Option("", NETWORK, variable=False)] = False
    """Speak without TLS on a network too, if you trust it. On loopback there is none."""

    public_page: Annotated[str, Option("HOST:PORT", PLACES, shown="none")] = ""
    """Address of a page of the run that everybody may read: without hosts, tokens and notes. Nodes
    are told where it is."""

    page_url: Annotated[str, Option("URL", PLACES, shown="as --public-page serves it")] = ""
    """Address at which others find the public page, as behind a proxy, or a copy of it (`lockstep
    run page`)."""

    notify: Annotated[str, Option("URL|COMMAND", PLACES, shown="none")] = field(
        default="", repr=False
    )
    """URL that gets a POST, or command that is run, at an alarm, a stall, skipped rounds in a row,
    a demotion, a new checkpoint and the end."""

    software: str = ""
    """Program and release, which everybody may know."""

    goodbye_ms: int = 15_000
    """Time in milliseconds that a finished run waits for its nodes to report their last digest and
    leave."""

    vouch: Annotated[tuple[str, ...], Option("PEER_ID", ADMITTED, shown=False)] = ()
    """Node whose word counts in a run with trust = "public", by its id in `lockstep status`; may be
    given several times. A run remembers it."""

    admit: Annotated[str, Option("RULE", ADMITTED, shown="as before, open at first")] = ""
    """Rule by which the run admits keys: open, token or list (see `lockstep run`)."""

    restart_from: Annotated[Path | None, RESTART_FROM] = None

    force: Annotated[bool, Option("", PLACES, variable=False)] = False
    """With --restart-from: restart even if a node may hold the newest state."""

    restart: RestartAsked | None = None
    """The same, with the digests of the checkpoint's parameters; None: none."""

    checkpoint_room: Annotated[int, Option("SIZE", MODEL, reads=room)] = 0
    """Disk for checkpoints of the model, which members write and send; 0: keep none here. Room for
    two at least keeps the last one while the next comes."""

    checkpoints_kept: Annotated[int, Option("N", MODEL, least=1)] = 2
    """Number of the newest checkpoints that stay."""

    def __post_init__(self) -> None:
        check_listen(self.listen)
        if self.advertise and is_loopback(self.listen):
            raise SettingsError(
                f"--advertise: nobody elsewhere reaches a coordinator that listens on {self.listen}"
                ": expected --listen 0.0.0.0:PORT beside it"
            )
        if self.advertise:
            try:
                parse_address(self.advertise)
            except SettingsError as error:
                raise SettingsError(f"--advertise: {error}") from None
        if self.public_page:
            check_listen(self.public_page, "--public-page")
        if self.page_url and not is_page(self.page_url):
            raise SettingsError(
                f"--page-url: expected http:// or https:// and a host, found {self.page_url[:80]!r}"
            )
        for peer in self.vouch:
            try:
                parse_peer_id(peer)
            except RemoteProtocolError as error:
                raise SettingsError(f"--vouch: {error}") from None
        if self.admit not in ("", *get_args(Mode)):
            raise SettingsError(f"--admit: expected open, token or list, got {self.admit!r}")
        check_bounds(self)
        if self.goodbye_ms < 0:
            raise SettingsError(f"goodbye_ms: expected 0 or more, got {self.goodbye_ms}")
