"""The settings of a volunteer's machine; those of the run come from the coordinator."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from node.system.hardware import MPS_REFUSAL
from node.system.rate_limit import check_rates
from node.transports.factory import parse_kinds
from protocol.addresses import check_advertise, check_listen, has_login
from protocol.border.join_link import parse_link
from protocol.errors import SettingsError
from protocol.limits import TEXT_BYTES_MAX

NAME_BYTES_MAX = 64
"""Bytes of a node's name, which tables and status pages of others show."""

_DEVICE = r"(cpu|cuda(:[0-9]{1,3})?)"

DEVICES = rf"auto|all|{_DEVICE}(,{_DEVICE}){{0,63}}"
"""Names of devices, as a regular expression."""


PERCENTS = ("duty_cycle", "gpu_memory")
"""Settings that are percentages, 1 to 100."""

LEAST = {"threads": 0, "ranks": 1, "micro_batch": 1, "save_every": 1, "data_cache": 10**6}
"""Least values of settings that are numbers."""


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

    coordinator: str
    """Link of the run, lockstep://HOST:PORT/RUN#KEY, or HOST:PORT."""

    directory: Path
    """Directory of the node's state, payload log and checkpoint."""

    data: Path | None = None
    """A prepared corpus (`lockstep data prepare`); None takes the run's own data."""

    data_url: str = ""
    """Where the data are published, any URL of fsspec, in place of the run file's; empty: that."""

    data_cache: int = 10**9
    """Bytes on disk for ranges of published data at most."""

    corpora: Path | None = None
    """Where built-in corpora are prepared on first use, shared by all nodes of a machine; None:
    inside `directory`."""

    listen: str = "auto"
    """HOST:PORT for peers, port 0 for a free one; "auto": the interface that leads to the
    coordinator."""

    advertise: tuple[str, ...] = ()
    """Addresses at which peers reach this node, when they differ from `listen`."""

    links: str = "grpc"
    """Transports to peers, the preferred one first: "grpc", "libp2p", or both with a comma."""

    upload_limit: int = 0
    """Bytes per second that this node uploads to all peers together at most; 0: no limit."""

    download_limit: int = 0
    """Bytes per second that this node downloads at most; 0: no limit."""

    device: str = "auto"
    """"cpu", "cuda", "cuda:1", or "auto" for the first GPU if there is one; several with commas,
    each with a rank of this node, or "all" GPUs."""

    ranks: int = 1
    """Ranks of this node, which share its passes (`node.ranks`)."""

    threads: int = 0
    """CPU threads for the computation of each rank; 0: torch chooses."""

    micro_batch: int = 8
    """Samples in one forward and backward pass."""

    recomputes: bool = False
    """Whether a pass computes the model's blocks again on the way back, to take less memory."""

    duty_cycle: int = 100
    """Percent of the time in which this node computes at most."""

    gpu_memory: int = 100
    """Percent of a GPU's memory that this node takes at most."""

    save_every: int = 20
    """Rounds between two saves of the node's state: as many are replayed after a kill."""

    name: str = ""
    """Name of this node in tables, at most 64 bytes."""

    token: str = field(default="", repr=False)
    """Secret that admits this node, where the run wants one; it is sent over TLS or loopback
    alone."""

    dial_private: bool = False
    """Whether private addresses that members announce are dialled although the coordinator is
    outside."""

    p2pd_sha256: str = ""
    """SHA-256 of the libp2p daemon to use, in hexadecimal; empty: that of the tested release."""

    publish: str = ""
    """Directory or fsspec URL that gets every checkpoint of the run; empty: none."""

    restart_from: Path | None = None
    """A checkpoint or snapshot that this node offers to a run which goes on from it."""

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
        for number, least in LEAST.items():
            if getattr(self, number) < least:
                raise SettingsError(
                    f"{number}: expected at least {least}, found {getattr(self, number)}"
                )
        for percent in PERCENTS:
            if not 1 <= getattr(self, percent) <= 100:
                raise SettingsError(
                    f"{percent}: expected 1 to 100 percent, found {getattr(self, percent)}"
                )
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
