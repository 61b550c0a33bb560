"""A node that does nothing that the coordinator asks of it about a state."""

from protocol import wire_pb2 as wire


class NoStateRequests:
    """The part of a node that does nothing that is asked of it."""

    def asked(self, message: wire.CoordinatorMessage) -> None:
        return

    def repeat(self) -> None:
        return

    async def show_state(self, round: int) -> None:
        return

    async def measure_while_idle(self) -> bool:
        return False

    async def borrow_time(self, left_ms: float) -> None:
        return

    def note_passes(self, pass_ms: float, *, cut: bool) -> None:
        return
