"""Two ranks over gloo on the loopback interface that live through stories, told to a test."""

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing

from node.exact.optimizer import DeMo
from tests.support.ranks import join_group

RANKS = 2

Story = Callable[[int], Any]


class Training:
    """A small model that one rank trains on samples of its own."""

    def __init__(self, rank: int, *, named: bool = False, **settings: Any) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 64))
        parameters: Any = self.model.named_parameters() if named else self.model.parameters()
        self.optimizer = DeMo(parameters, **{"lr": 0.01, "local_steps": 0} | settings)
        self._samples = torch.Generator().manual_seed(rank)

    @property
    def weight(self) -> torch.Tensor:
        return self.model[0].weight

    @property
    def group(self) -> dict[str, Any]:
        return self.optimizer.param_groups[0]

    def loss(self) -> torch.Tensor:
        return self.model(torch.randn(4, 64, generator=self._samples)).square().mean()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()

    def step(self) -> None:
        self.backward()
        self.optimizer.step()

    def refused(self) -> str:
        """The error of a step that must not move anything: its type and its sentence."""
        before = self.digest()
        try:
            self.optimizer.step()
        except Exception as error:
            assert self.digest() == before
            return f"{type(error).__name__}: {error}"
        return "made"

    def digest(self) -> str:
        return digest(list(self.model.parameters()))


def digest(tensors: Sequence[torch.Tensor]) -> str:
    """Digest of the bits of tensors."""
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def run_rank(rank: int, folder: str, stories: Sequence[Story], timeout_s: float) -> None:
    join_group(rank, folder, ranks=RANKS, timeout_s=timeout_s)
    told = {}
    for story in stories:
        told[story.__name__] = story(rank)
        torch.save(told, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def told_by(
    folder: Path, stories: Sequence[Story], *, timeout_s: float = 120
) -> list[dict[str, Any]]:
    """What each rank tells of its stories."""
    torch.multiprocessing.spawn(run_rank, (str(folder), stories, timeout_s), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
