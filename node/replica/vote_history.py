"""The votes of the last rounds, which a step adds to those of its own.

Small payloads make few votes, and the signal of one round's votes is small beside their noise. With
`algorithm.vote_rounds` above 1 every vote counts in that number of steps, and every step has the
votes of that number of rounds. Nothing is sent twice: a replica remembers the payloads of the last
commits.

    step of a commit    its votes and, from round `vote_rounds_from` on, those of the
                        vote_rounds - 1 commits before it
    snapshot            clears the history: a snapshot is the parameters alone, and a replica that
                        starts from one makes the same bits as one that was there
    restart             the history is part of the saved state

So a step is a function of the log since the last snapshot, and of nothing else.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from node.demo.vote_sum import Contribution
from protocol.codec.payload import PayloadShape, decode
from protocol.errors import RemoteProtocolError, StorageError
from protocol.ids import sha256
from protocol.runfile import AlgorithmSpec
from protocol.sections.retention import RetentionSpec


@dataclass(frozen=True, slots=True, eq=False)
class CountedPayload:
    """A payload that counts in the commit of a round, and the votes that it holds."""

    round: int
    payload: bytes
    contribution: Contribution

    @property
    def name(self) -> str:
        """Under which it is saved: what must be in it."""
        return f"{self.round}/{self.contribution.weight}/{sha256(self.payload).hex()}"


class VoteHistory:
    """What one replica remembers of the last commits that had votes."""

    def __init__(self, algorithm: AlgorithmSpec, retention: RetentionSpec) -> None:
        self._algorithm, self._retention = algorithm, retention
        self._commits: deque[Sequence[CountedPayload]] = deque(maxlen=algorithm.vote_rounds - 1)
        """Oldest first."""

    def joined(
        self, round: int, step: int, payloads: Sequence[CountedPayload]
    ) -> list[Contribution]:
        """The contributions of a commit's step. Stores the commit's payloads for later steps, so it
        is called once for each commit, in their order.
        """
        counted = [*payloads]
        if round >= self._algorithm.vote_rounds_from:
            counted += self._remembered()
        if self._retention.snapshot_due(step):
            self.forget()
        elif payloads:
            self._commits.append(payloads)
        return [payload.contribution for payload in counted]

    def forget(self) -> None:
        """Stand at genesis, or at a snapshot."""
        self._commits.clear()

    def tensors(self) -> dict[str, Tensor]:
        """What is remembered, to be saved: uint8 [bytes] of each payload."""
        return {
            counted.name: torch.from_numpy(np.frombuffer(counted.payload, np.uint8).copy())
            for counted in self._remembered()
        }

    def restore(self, tensors: Mapping[str, Tensor], shape: PayloadShape) -> None:
        """Remember what was saved; `shape` is what payloads are like. `StorageError`
        for any other.
        """
        self.forget()
        by_round: dict[int, list[CountedPayload]] = {}
        for name, tensor in tensors.items():
            counted = _restored(name, tensor.cpu().numpy().tobytes(), shape)
            by_round.setdefault(counted.round, []).append(counted)
        self._commits.extend(by_round[round] for round in sorted(by_round))

    def _remembered(self) -> Iterator[CountedPayload]:
        return (payload for payloads in self._commits for payload in payloads)


def _restored(name: str, payload: bytes, shape: PayloadShape) -> CountedPayload:
    try:
        round, weight = map(int, name.split("/")[:2])
        counted = CountedPayload(round, payload, Contribution(weight, decode(payload, shape)[1]))
    except (RemoteProtocolError, ValueError) as error:
        raise StorageError(f"expected a payload that counted as {name}: {error}") from error
    if counted.name != name:
        raise StorageError(f"expected a payload that counted as {name}, got {counted.name}")
    return counted
