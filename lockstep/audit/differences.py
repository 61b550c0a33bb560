"""Differences between a record and its replay."""

from lockstep.audit.ledger import UnannouncedVoidError
from protocol.errors import DivergedError, RemoteProtocolError
from protocol.ids import Digest


class Difference(DivergedError):  # noqa: N818 (a finding)
    """The record differs from its replay; `round` is the first round that differs."""

    def __init__(self, round: int, reason: str) -> None:
        super().__init__(f"the first difference is in round {round}: {reason}")
        self.round, self.reason = round, reason


class LateVoid(Difference):
    """A payload that was applied is void, says a later entry of the chain. In a live run that may
    be: the replay goes back to before `void`, the payload's round and digest.
    """

    def __init__(self, round: int, reason: str, void: tuple[int, Digest]) -> None:
        super().__init__(round, reason)
        self.void = void


def difference_of(round: int, reason: str, error: RemoteProtocolError) -> Difference:
    """The difference that a broken link of the chain is."""
    reason = f"{reason}: {error}"
    if isinstance(error, UnannouncedVoidError):
        return LateVoid(round, reason, error.void)
    return Difference(round, reason)
