"""Bytes that a node sent and received, by owner, for status and metrics.

payload      payloads of undecided rounds
catch-up     for late joiners: the run, commits, payloads of decided rounds, snapshots
control      everything else on links, and the session with the coordinator
overhead     added by transports and the operating system, where the kernel counts it
"""

from dataclasses import asdict, dataclass, replace

from protocol.traffic import Overhead


@dataclass(slots=True)
class Traffic:
    """Bytes of frames or messages by their owner: payloads of undecided rounds, blobs that a node
    catches up with, and control, which is everything else. The bytes that transports and the
    operating system add are not counted here.
    """

    payload_up: int = 0
    payload_down: int = 0
    catch_up_up: int = 0
    catch_up_down: int = 0
    control_up: int = 0
    control_down: int = 0
    late_down: int = 0
    """Part of payload and catch-up: parts that were on their way when their fetch was cancelled."""

    def count_up(self, count: int, *, catch_up: bool) -> None:
        """Count the data of a part that left."""
        if catch_up:
            self.catch_up_up += count
        else:
            self.payload_up += count

    def count_down(self, count: int, *, catch_up: bool) -> None:
        """Count the data of a part that arrived."""
        if catch_up:
            self.catch_up_down += count
        else:
            self.payload_down += count

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(*(getattr(self, name) + getattr(other, name) for name in self.__slots__))


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bytes since the start, by owner. Duplicates are payload bytes that arrived and were of no
    use.
    """

    payload_up_bytes: int
    payload_down_bytes: int
    catch_up_up_bytes: int
    catch_up_down_bytes: int
    control_up_bytes: int
    control_down_bytes: int
    duplicate_bytes: int
    overhead_up_bytes: int | None = None
    overhead_down_bytes: int | None = None
    """None: unknown."""

    @classmethod
    def of(cls, traffic: Traffic, discarded: int) -> "Statistics":
        """The traffic of links; `discarded` are bytes of parts that were thrown away after they
        had arrived.
        """
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
        """Adds the session with the coordinator, and the overhead."""
        owned = replace(
            self,
            catch_up_up_bytes=self.catch_up_up_bytes + session.catch_up_up,
            catch_up_down_bytes=self.catch_up_down_bytes + session.catch_up_down,
            control_up_bytes=self.control_up_bytes + session.control_up,
            control_down_bytes=self.control_down_bytes + session.control_down,
        )
        overhead_up, overhead_down = overhead(owned.up_bytes, owned.down_bytes) or (None, None)
        return replace(owned, overhead_up_bytes=overhead_up, overhead_down_bytes=overhead_down)

    @property
    def up_bytes(self) -> int:
        """All bytes that left, as far as they are known."""
        owned = self.payload_up_bytes + self.catch_up_up_bytes + self.control_up_bytes
        return owned + (self.overhead_up_bytes or 0)

    @property
    def down_bytes(self) -> int:
        """All bytes that came, as far as they are known."""
        owned = self.payload_down_bytes + self.catch_up_down_bytes + self.control_down_bytes
        return owned + (self.overhead_down_bytes or 0)

    def document(self) -> dict[str, int | None]:
        """The figures of a status page."""
        return asdict(self)
