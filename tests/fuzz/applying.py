"""Apply is total: two replicas that compute in different ways make the same step of any payload."""

from functools import cache

import torch

from node.demo.plain import Plain
from node.replica.factory import replica_for
from node.replica.replica import Replica
from protocol.codec.commits import Commit, Entry, genesis_digest
from protocol.ids import PeerId, sha256
from protocol.runfile import AlgorithmSpec, ScheduleSpec
from protocol.schedule import scalars
from tests.fuzz.targets import PEER, RUN, Target, payload_for
from tests.support.tiny import tiny_spec

ROUND = 3
AUTHORS = (PEER, PeerId("ef" * 16))


@cache
def replicas() -> tuple[Replica, Replica]:
    """One with the fastest backend of this machine, one with the plain one."""
    algorithm = AlgorithmSpec(name="demo", top_k=4)
    spec = tiny_spec(overlap=0).model_copy(update={"algorithm": algorithm})
    ours, plain = (replica_for(spec, RUN, torch.device("cpu"), 1) for _ in range(2))
    plain.engine.backend = Plain(plain.layout)
    return ours, plain


def judge_apply(blob: bytes) -> None:
    """A commit of an honest payload and of any bytes."""
    ours, plain = replicas()
    sent = [blob or b"\0", payload_for(ours.shape, ROUND, AUTHORS[1], 1)]
    entries = tuple(
        Entry(author, sha256(payload), len(payload), 1, 1)
        for author, payload in zip(AUTHORS, sent, strict=True)
    )
    commit = Commit(RUN, ROUND, ROUND, entries, *scalars(ScheduleSpec(), 100), genesis_digest(RUN))
    assert ours.apply(commit, sent) == plain.apply(commit, sent), "two states"


def target() -> Target:
    """The reader that makes steps."""
    shape = replicas()[0].shape
    seeds = tuple(payload_for(shape, ROUND, AUTHORS[0], number) for number in range(4))
    return Target(judge_apply, seeds, share=1)
