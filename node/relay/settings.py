"""The settings of a relay's operator."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from node.settings import (
    Advertise,
    Links,
    P2pdSha256,
    Token,
    UploadLimit,
    check_network,
    check_sha256,
)
from protocol.border.join_link import split_token
from protocol.option import LINK, NETWORK, Option, check_bounds


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of one relay process."""

    coordinator: Annotated[str, LINK]

    directory: Path = Path()
    """Directory of the relay's key and payloads."""

    listen: Annotated[str, Option("HOST:PORT", NETWORK)] = "0.0.0.0:50710"
    """Address for connections of nodes; port 0 takes a free one."""

    advertise: Advertise = ()

    links: Links = "grpc"

    upload_limit: UploadLimit = 0

    peer_limit: Annotated[int, Option("BYTES", NETWORK, least=0)] = 0
    """Limit on the upload to one peer, in bytes per second; 0: none, but the order is fair."""

    disk: Annotated[int, Option("BYTES", least=1)] = 4 * 1024**3
    """Limit on the payloads that are kept on disk, in bytes."""

    token: Token = field(default="", repr=False)
    """It is sent over TLS or loopback alone."""

    p2pd_sha256: P2pdSha256 = ""

    archive: Annotated[bool, Option()] = False
    """Keep every committed payload, as far as --disk reaches, so that the run can be audited from
    its first round; such a relay goes on when the run is finished."""

    sums: Annotated[bool, Option()] = False
    """Offer to add payloads for all, in rounds with summers. It costs traffic that others are
    spared: a single relay takes about one payload of every node in each round, and sends the
    results to those that fetch them. In a run that is open to the public the operator vouches for
    the relay first."""

    name: str = "relay"
    """Name of the relay among the others."""

    def __post_init__(self) -> None:
        check_network(
            self.coordinator,
            self.listen,
            self.advertise,
            self.links,
            upload_limit=self.upload_limit,
            peer_limit=self.peer_limit,
        )
        check_sha256("p2pd_sha256", self.p2pd_sha256)
        check_bounds(self)

    def at(self, directory: Path) -> "RelaySettings":
        """These settings in a directory, with the token of the link, if it has one."""
        url, token = split_token(self.coordinator, self.token)
        return replace(self, coordinator=url, token=token, directory=directory)

    @property
    def slowest(self) -> int:
        """Bytes per second that one peer may take at most, all limits together; 0: no limit."""
        return min(filter(None, (self.upload_limit, self.peer_limit)), default=0)
