"""What a node's line carried, each byte with its owner, for status and metrics.

payload      payloads of undecided rounds
catch-up     what a late joiner needs: the run, commits, payloads of decided rounds, snapshots
control      all else that links carry, and the session with the coordinator
overhead     what transports and the operating system add, where the kernel tells of it
"""

from dataclasses import asdict, dataclass, replace

from node.links.network import Traffic
from protocol.traffic import Overhead


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bytes since the start, each with its owner. Duplicates are payload bytes that arrived and
    were of no use."""

    payload_up_bytes: int
    payload_down_bytes: int
    catch_up_up_bytes: int
    catch_up_down_bytes: int
    control_up_bytes: int
    control_down_bytes: int
    duplicate_bytes: int
    overhead_up_bytes: int | None = None
    overhead_down_bytes: int | None = None
    """None: not known."""

    @classmethod
    def of(cls, traffic: Traffic, discarded: int) -> "Statistics":
        """The traffic of links; `discarded` are bytes of parts that were taken and then thrown
        away."""
        return cls(
            traffic.payload_up,
            traffic.payload_down,
            traffic.catch_up_up,
            traffic.catch_up_down,
            traffic.control_up,
            traffic.control_down,
            traffic.late_down + discarded,
        )

    def complete(self, session: Traffic, overhead: Overhead) -> "Statistics":
        """With what the session with the coordinator carried, and what nobody owns."""
        owned = replace(
            self,
            catch_up_down_bytes=self.catch_up_down_bytes + session.catch_up_down,
            control_up_bytes=self.control_up_bytes + session.control_up,
            control_down_bytes=self.control_down_bytes + session.control_down,
        )
        overhead_up, overhead_down = overhead(owned.up_bytes, owned.down_bytes) or (None, None)
        return replace(owned, overhead_up_bytes=overhead_up, overhead_down_bytes=overhead_down)

    @property
    def up_bytes(self) -> int:
        """All that left, as far as is known."""
        owned = self.payload_up_bytes + self.catch_up_up_bytes + self.control_up_bytes
        return owned + (self.overhead_up_bytes or 0)

    @property
    def down_bytes(self) -> int:
        """All that came, as far as is known."""
        owned = self.payload_down_bytes + self.catch_up_down_bytes + self.control_down_bytes
        return owned + (self.overhead_down_bytes or 0)

    def document(self) -> dict[str, int | None]:
        """For a status page."""
        return asdict(self)
