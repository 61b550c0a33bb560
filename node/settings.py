"""The settings of a volunteer's machine; those of the run come from the coordinator."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from node.system.hardware import MPS_REFUSAL
from node.system.rate_limit import check_rates
from node.transports.kinds import parse_kinds
from protocol.addresses import check_advertise, check_listen, has_login
from protocol.border.join_link import parse_link, split_token
from protocol.errors import SettingsError
from protocol.limits import TEXT_BYTES_MAX
from protocol.option import DATA, LINK, NETWORK, PLACES, RESTART_FROM, USE, Option, check_bounds

NAME_BYTES_MAX = 64
"""Bytes of a node's name, which tables and status pages of others show."""

_DEVICE = r"(cpu|cuda(:[0-9]{1,3})?)"

DEVICES = rf"auto|all|{_DEVICE}(,{_DEVICE}){{0,63}}"
"""Names of devices, as a regular expression."""


# ---- declarations that other processes' settings have too

Token = Annotated[
    str,
    Option(
        "TOKEN",
        shown="that of the link, if any",
        help="Secret from the operator, for a run that admits by token; needed once for a key.",
    ),
]

Data = Annotated[
    Path | None,
    Option(
        "DIR",
        DATA,
        shown="the run's own data",
        help="Directory of prepared data (`lockstep data prepare` fills one).",
    ),
]

Advertise = Annotated[
    tuple[str, ...],
    Option(
        "ADDRESS",
        NETWORK,
        shown="found out at the start",
        help="Address at which peers reach this machine; repeatable.",
    ),
]

Links = Annotated[
    str,
    Option(
        "KINDS",
        NETWORK,
        help="Transports to peers: grpc, libp2p or grpc,libp2p (the preferred one first).",
    ),
]

P2pdSha256 = Annotated[
    str,
    Option(
        "DIGEST",
        NETWORK,
        shown="that of hivemind's release",
        help="SHA-256 of the libp2p daemon that may be started, in hexadecimal.",
    ),
]

UploadLimit = Annotated[
    int,
    Option(
        "BYTES",
        USE,
        least=0,
        most=10**12,
        help="Limit on the upload to all peers together, in bytes per second; 0: none.",
    ),
]

DownloadLimit = Annotated[
    int,
    Option(
        "BYTES",
        USE,
        least=0,
        most=10**12,
        help="Limit on what comes from peers and from the data's server together, in bytes per "
        "second; 0: none.",
    ),
]

DutyCycle = Annotated[
    int,
    Option(
        "PERCENT",
        USE,
        least=1,
        most=100,
        help="Limit on the part of the time in which this machine computes.",
    ),
]

GpuMemory = Annotated[
    int,
    Option(
        "PERCENT",
        USE,
        least=1,
        most=100,
        help="Limit on the part of each GPU's memory that the node takes.",
    ),
]

Threads = Annotated[
    int, Option("N", USE, least=0, help="CPU threads of each rank; 0: all cores, shared by ranks.")
]

SaveEvery = Annotated[
    int, Option("ROUNDS", PLACES, least=1, help="Rounds between two saves of the state.")
]


def check_network(
    coordinator: str, listen: str, advertise: tuple[str, ...], links: str, **limits: int
) -> None:
    """Check the settings that nodes and relays have alike; `SettingsError` names the one that is
    wrong. `limits` are in bytes per second, 0 for none.
    """
    parse_link(coordinator)
    check_listen(listen)
    check_advertise(advertise)
    parse_kinds(links)
    check_rates(**limits)


def check_sha256(name: str, text: str) -> None:
    """`SettingsError` unless a setting is empty or a SHA-256 in hexadecimal."""
    if text and not re.fullmatch("[0-9a-fA-F]{64}", text):
        raise SettingsError(f"{name}: expected 64 hexadecimal digits, found {text[:80]!r}")


def check_publish(url: str) -> None:
    """Check an address for checkpoints; `SettingsError` for one that others must not see."""
    if len(url.encode(errors="replace")) > TEXT_BYTES_MAX or not url.isprintable():
        raise SettingsError(
            f"publish: expected a directory or URL of at most {TEXT_BYTES_MAX} bytes, "
            f"found {url[:80]!a}"
        )
    if has_login(url):
        raise SettingsError(
            "publish: expected a URL without a name and password in it, which every member would "
            "be told; give them in the environment (HF_TOKEN, AWS_ACCESS_KEY_ID and so on)"
        )


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Settings of one node process."""

    coordinator: Annotated[str, LINK]

    directory: Path = Path()
    """Directory of the node's state, payload log and checkpoint."""

    token: Token = field(default="", repr=False)
    """It is sent over TLS or loopback alone."""

    name: Annotated[str, Option("NAME", shown="none")] = ""
    """Name of this node in tables, at most 64 bytes."""

    data: Data = None

    data_url: Annotated[str, Option("URL", DATA, shown="as in the run file")] = ""
    """URL of published data (http, https, s3, hf, file), whose ranges are fetched."""

    data_cache: Annotated[int, Option("BYTES", DATA, least=10**6)] = 10**9
    """Limit on the ranges of published data that are kept on disk, in bytes."""

    corpora: Annotated[Path | None, Option("DIR", DATA, shown="HOME/corpora")] = None
    """Directory of built-in corpora, shared by all nodes of this machine."""

    listen: Annotated[str, Option("HOST:PORT", NETWORK)] = "auto"
    """Address for connections of peers; auto: the interface that leads to the coordinator."""

    advertise: Advertise = ()

    links: Links = "grpc"

    dial_private: Annotated[bool, Option("", NETWORK, variable=False)] = False
    """Dial private addresses that members announce though the coordinator is outside: for machines
    of yours behind one router."""

    p2pd_sha256: P2pdSha256 = ""

    device: Annotated[str, Option("NAME", USE)] = "auto"
    """Device that trains: cpu, cuda, cuda:1, several with commas, each with a rank of this node;
    all: every GPU; auto: the first one, if there is one."""

    ranks: int = 1
    """Ranks of this node, which share its passes (`node.ranks`)."""

    threads: Threads = 0

    micro_batch: Annotated[int, Option("N", USE, least=1)] = 8
    """Samples in one forward and backward pass."""

    recomputes: bool = False
    """Whether a pass computes the model's blocks again on the way back, to take less memory."""

    duty_cycle: DutyCycle = 100

    gpu_memory: GpuMemory = 100

    upload_limit: UploadLimit = 0

    download_limit: DownloadLimit = 0

    save_every: SaveEvery = 20

    publish: Annotated[str, Option("URL", PLACES, shown="nowhere")] = ""
    """Directory or fsspec URL (such as hf://ACCOUNT/REPOSITORY, with HF_TOKEN) that gets every
    checkpoint of the run, with this node's word for it."""

    restart_from: Annotated[Path | None, RESTART_FROM] = None

    def __post_init__(self) -> None:
        listen = "127.0.0.1:0" if self.listen == "auto" else self.listen
        limits = {"upload_limit": self.upload_limit, "download_limit": self.download_limit}
        check_network(self.coordinator, listen, self.advertise, self.links, **limits)
        check_sha256("p2pd_sha256", self.p2pd_sha256)
        if "mps" in self.device.split(","):
            raise SettingsError(f"device: {MPS_REFUSAL}; leave --device out, and the CPU trains")
        if not re.fullmatch(DEVICES, self.device):
            raise SettingsError(
                f"device: expected cpu, cuda, cuda:N, several with commas, all or auto, found "
                f"{self.device!r}"
            )
        check_bounds(self)
        check_publish(self.publish)
        try:
            size = len(self.name.encode())
        except UnicodeEncodeError:
            raise SettingsError(
                f"name: expected UTF-8, found {self.name.encode(errors='replace')!r}; use a UTF-8 "
                "locale (LC_ALL=C.UTF-8) or plain letters"
            ) from None
        if size > NAME_BYTES_MAX:
            raise SettingsError(f"name: expected at most {NAME_BYTES_MAX} bytes, found {size}")
        if not self.name.isprintable():
            raise SettingsError(
                f"name: expected text without control characters, found {self.name!a}"
            )

    def at(self, directory: Path) -> "NodeSettings":
        """These settings in a directory, with the token of the link, if it has one."""
        url, token = split_token(self.coordinator, self.token)
        return replace(self, coordinator=url, token=token, directory=directory)
