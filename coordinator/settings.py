"""What the operator of a coordinator chooses on this machine; what the run agrees on is in the run
file."""

from dataclasses import dataclass
from pathlib import Path

from protocol.addresses import check_listen
from protocol.errors import SettingsError


@dataclass(frozen=True, slots=True)
class CoordinatorSettings:
    """Settings of one coordinator process."""

    directory: Path
    """Where its journal lives; the same directory continues the same run."""

    listen: str = "127.0.0.1:50700"
    """Address and port for nodes; port 0 takes a free one."""

    goodbye_ms: int = 15_000
    """How long a finished run waits for its nodes to report their last digest and leave, in
    milliseconds."""

    def __post_init__(self) -> None:
        check_listen(self.listen)
        if self.goodbye_ms < 0:
            raise SettingsError(f"goodbye_ms: expected 0 or more, found {self.goodbye_ms}")
