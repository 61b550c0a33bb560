"""Settings that the operator of a coordinator chooses on this machine. Settings that all nodes of a
run agree on are in the run file.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import get_args

from coordinator.machine.events.acts import Mode
from coordinator.machine.events.inputs import RestartAsked
from protocol.addresses import check_listen, is_page, parse_address
from protocol.border.join_link import is_loopback
from protocol.errors import RemoteProtocolError, SettingsError
from protocol.ids import parse_peer_id


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of one coordinator process."""

    directory: Path
    """Directory of the journal; the same directory continues the same run."""

    listen: str = "127.0.0.1:50700"
    """Address and port for nodes; port 0 takes a free one."""

    advertise: str = ""
    """HOST or HOST:PORT at which nodes reach the coordinator, for the link that volunteers are
    given; empty: as it listens."""

    public_page: str = ""
    """Address and port of the page that everybody may read; empty: none is served."""

    page_url: str = ""
    """Address at which others find that page, or a copy of it; empty: as it is served."""

    notify: str = field(default="", repr=False)
    """URL or command, maybe with a secret, that gets what the operator should hear of; empty:
    none."""

    software: str = ""
    """Program and release, which everybody may know."""

    goodbye_ms: int = 15_000
    """Time in milliseconds that a finished run waits for its nodes to report their last digest and
    leave."""

    vouched: tuple[str, ...] = ()
    """Ids of nodes whose word counts in a run that is open to the public; the journal keeps those
    of earlier starts."""

    admit: str = ""
    """Rule by which the run admits keys: "open", "token" or "list"; empty: that of the journal, at
    first "open"."""

    restart: RestartAsked | None = None
    """The checkpoint from which the run goes on if nobody holds its newest state; None: none."""

    checkpoint_room: int = 0
    """Disk in bytes that checkpoints may take in the directory; 0: none are kept there."""

    checkpoints_kept: int = 2
    """Newest checkpoints that stay."""

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
        for peer in self.vouched:
            try:
                parse_peer_id(peer)
            except RemoteProtocolError as error:
                raise SettingsError(f"--vouch: {error}") from None
        if self.admit not in ("", *get_args(Mode)):
            raise SettingsError(f"--admit: expected open, token or list, got {self.admit!r}")
        for name, least in (("checkpoint_room", 0), ("checkpoints_kept", 1)):
            if (found := getattr(self, name)) < least:
                raise SettingsError(f"{name}: expected {least} or more, got {found}")
        if self.goodbye_ms < 0:
            raise SettingsError(f"goodbye_ms: expected 0 or more, got {self.goodbye_ms}")
