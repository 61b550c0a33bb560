"""What a volunteer chooses on this machine; what the run agrees on comes from the coordinator."""

from dataclasses import dataclass
from pathlib import Path

from node.links.token_bucket import LIMIT_BYTES_PER_SECOND_MIN
from node.transports.factory import parse_kinds
from protocol.addresses import parse_address
from protocol.errors import SettingsError


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one node process."""

    coordinator: str
    """Address of the coordinator, HOST:PORT or lockstep://HOST:PORT."""

    directory: Path
    """Where the node keeps its state, its payload log and its checkpoint."""

    data: Path | None = None
    """A prepared corpus (`lockstep data prepare`); None takes the run's built-in corpus."""

    corpora: Path | None = None
    """Where built-in corpora are prepared on first use, shared by all nodes of a machine; None:
    inside `directory`."""

    listen: str = "auto"
    """Address and port for peers, port 0 for a free one; "auto": the interface that leads to the
    coordinator."""

    advertise: tuple[str, ...] = ()
    """Addresses at which peers reach this node, if they are others than `listen`."""

    links: str = "grpc"
    """Transports to peers, the favourite first: "grpc", "libp2p", or both with a comma between."""

    upload_limit: int = 0
    """Bytes per second that this node may upload to peers, all in all; 0: as fast as the links
    carry."""

    device: str = "auto"
    """"cpu", "cuda", "cuda:1", or "auto" for the first GPU if there is one."""

    threads: int = 0
    """CPU threads for the computation; 0 leaves the choice to torch."""

    micro_batch: int = 8
    """Samples in one forward and backward pass."""

    save_every: int = 20
    """Rounds between two saves of the node's state; 1: a kill loses nothing."""

    name: str = ""
    """What people call this node in tables."""

    def __post_init__(self) -> None:
        parse_address(self.coordinator)
        if self.listen != "auto":
            parse_address(self.listen)
        for address in self.advertise:
            if not address.startswith("/"):  # libp2p's are judged by its transport
                parse_address(address)
        parse_kinds(self.links)
        if self.upload_limit and self.upload_limit < LIMIT_BYTES_PER_SECOND_MIN:
            raise SettingsError(
                f"upload_limit: expected 0 or at least {LIMIT_BYTES_PER_SECOND_MIN} bytes per second, found "
                f"{self.upload_limit}"
            )
        for field, least in (("threads", 0), ("micro_batch", 1), ("save_every", 1)):
            if getattr(self, field) < least:
                raise SettingsError(
                    f"{field}: expected at least {least}, found {getattr(self, field)}"
                )
        if len(self.name.encode()) > 64:
            raise SettingsError(f"name: expected at most 64 bytes, found {len(self.name.encode())}")
