"""Settings that the operator of a coordinator chooses on this machine. Settings that all nodes of a
run agree on are in the run file.
"""

from dataclasses import dataclass
from pathlib import Path

from protocol.addresses import check_listen
from protocol.errors import SettingsError


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of one coordinator process."""

    directory: Path
    """Directory of the journal; the same directory continues the same run."""

    listen: str = "127.0.0.1:50700"
    """Address and port for nodes; port 0 takes a free one."""

    goodbye_ms: int = 15_000
    """Time in milliseconds that a finished run waits for its nodes to report their last digest and
    leave."""

    def __post_init__(self) -> None:
        check_listen(self.listen)
        if self.goodbye_ms < 0:
            raise SettingsError(f"goodbye_ms: expected 0 or more, got {self.goodbye_ms}")
