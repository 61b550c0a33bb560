"""A round that only mixes asks nothing of the model."""

from types import SimpleNamespace
from typing import Any, cast

from node.round.compute import train_round
from node.round.context import RoundContext
from protocol import wire_pb2 as wire


class Untouched:
    """A replica that must not be asked for a pass."""

    def begin(self, *_: Any) -> Any:
        raise AssertionError("expected no pass in a round that only mixes")


async def never(_: int) -> bool:
    raise AssertionError("expected nothing to settle between passes")


async def test_in_a_round_that_only_mixes_no_pass_is_made_and_there_is_a_payload() -> None:
    context = cast(RoundContext, SimpleNamespace(replica=Untouched()))
    opened = wire.RoundOpened(round=3, only_mixes=True)
    work = await train_round(context, opened, None, never)
    assert work is not None, "without work a node announces no payload"
    assert (work.samples, work.loss_nats_per_token, work.tokens) == (0, 0.0, 0)
