"""The settings of a relay's operator."""

from dataclasses import dataclass, field
from pathlib import Path

from node.settings import check_network, check_sha256
from protocol.errors import SettingsError


@dataclass(frozen=True, slots=True)
class RelaySettings:
    """Settings of one relay process."""

    coordinator: str
    """Link of the run, lockstep://HOST:PORT/RUN#KEY, or HOST:PORT."""

    directory: Path
    """Directory of the relay's key and payloads."""

    listen: str = "0.0.0.0:50710"
    """HOST:PORT for peers."""

    advertise: tuple[str, ...] = ()
    """Addresses at which peers reach the relay from outside, when they differ from `listen`."""

    links: str = "grpc"
    """Transports, the preferred one first: "grpc", "libp2p", or both with a comma."""

    log_bytes_max: int = 4 * 1024**3
    """Bytes of payloads on disk at most."""

    upload_limit: int = 0
    """Bytes per second that the relay uploads to all peers together at most; 0: no limit."""

    peer_limit: int = 0
    """Bytes per second that one peer may take at most; 0: no limit but the fair order."""

    token: str = field(default="", repr=False)
    """Secret that admits this relay, where the run wants one; it is sent over TLS or loopback
    alone."""

    p2pd_sha256: str = ""
    """SHA-256 of the libp2p daemon to use, in hexadecimal; empty: that of the tested release."""

    archive: bool = False
    """Whether the relay keeps every committed payload from the first round on, as far as
    `log_bytes_max` reaches, and goes on when the run is finished."""

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
        if self.log_bytes_max < 1:
            raise SettingsError(f"log_bytes_max: expected at least 1, found {self.log_bytes_max}")

    @property
    def slowest(self) -> int:
        """Bytes per second that one peer may take at most, all limits together; 0: no limit."""
        return min(filter(None, (self.upload_limit, self.peer_limit)), default=0)
