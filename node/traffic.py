"""What a node's links carried, for status and metrics."""

from dataclasses import asdict, dataclass

from node.links.base import Traffic


@dataclass(frozen=True, slots=True)
class Statistics:
    """Bytes since the start, each with its owner. Duplicates are payload bytes that arrived and were of no use."""

    payload_up_bytes: int
    payload_down_bytes: int
    catch_up_up_bytes: int
    catch_up_down_bytes: int
    control_up_bytes: int
    control_down_bytes: int
    duplicate_bytes: int

    @classmethod
    def of(cls, traffic: Traffic, discarded: int) -> "Statistics":
        """The traffic of links; `discarded` are bytes of parts that were taken and then thrown away."""
        return cls(
            traffic.payload_up,
            traffic.payload_down,
            traffic.catch_up_up,
            traffic.catch_up_down,
            traffic.control_up,
            traffic.control_down,
            traffic.late_down + discarded,
        )

    def document(self) -> dict[str, int]:
        """For a status page."""
        return asdict(self)
