"""Positions of the data order, as messages have them."""

from collections.abc import Iterable

from coordinator.journal import RecordedCommit
from protocol import wire_pb2 as wire
from protocol.shuffle import Share

SHARE_BYTES = 24
"""Bytes of a share in a message, at most: two numbers of ten, and what frames them."""


def share_lines(shares: Iterable[Share]) -> list[wire.Share]:
    """Some shares."""
    return [wire.Share(first=share.first, count=share.count) for share in shares]


def trained_lines(recorded: RecordedCommit) -> list[wire.Trained]:
    """What the authors of a commit say they have trained, in the order of its entries."""
    return [wire.Trained(shares=share_lines(shares)) for shares in recorded.trained]


def log_bytes(recorded: RecordedCommit) -> int:
    """Bytes of a commit in a page of the log, about."""
    shares = sum(1 + len(each) for each in recorded.trained)
    return len(recorded.signed.body) + SHARE_BYTES * shares
