"""One process of a baseline: `python -m tests.benchmarks.wan.ranks RANK-AS-JSON`.

    ddp         PyTorch's DistributedDataParallel over gloo, AdamW, float32;
                buckets travel during backward
    diloco      AdamW steps alone, then one all-reduce over gloo of every rank's change,
                and Nesterov's outer step
    hivemind    `hivemind.Optimizer`, set up as the configuration guide in its documentation says

All ranks begin with equal parameters, so only handshakes are sent before the first step.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from tests.benchmarks.wan.curves import OUTER_MOMENTUM, OUTER_RATE
from tests.benchmarks.wan.model import CONFIGS, Notes, StandIn, shapes

GLOO_PORT, HIVEMIND_PORT = 29500, 29600

PATIENCE_S = 1800.0
"""Longest wait for a step on any link of these results."""

LEARNING_RATE = 1e-3
"""Learning rate of all ranks, without effect: the gradients are random."""

MATCHMAKING_S = 15.0
"""Matchmaking time of hivemind by its guide for the internet, and its default; a test on one
machine needs 3 at most."""

WARMUP_NUMBERS = 1 << 18
"""Numbers in the all-reduce that opens gloo's connections before the first step."""


@dataclass(frozen=True, slots=True)
class Rank:
    """The orders of one process."""

    method: str
    rank: int
    ranks: int
    address: str
    """Address of its own computer."""
    master: str
    """Address of the computer of rank 0."""
    size: str
    steps: int
    """Steps to make; for DiLoCo inner ones, before one outer step."""
    compute_s: float
    matchmaking_s: float
    averaging_s: float
    directory: str
    """Directory of all ranks' notes."""

    @property
    def notes(self) -> Path:
        """Path of its notes."""
        return Path(self.directory, f"node-{self.rank}.jsonl")

    def model(self) -> StandIn:
        """The network, with gradients of its own."""
        return StandIn(shapes(CONFIGS[self.size]), self.compute_s, self.rank)


def ddp(rank: Rank, notes: Notes) -> None:
    """Steps of DistributedDataParallel."""
    with gloo(rank):
        model = torch.nn.parallel.DistributedDataParallel(
            rank.model(), init_sync=False, gradient_as_bucket_view=True
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE)
        for _ in range(rank.steps):
            notes.next_step().compute_s = rank.compute_s
            model().backward()
            with notes.arithmetic():
                optimizer.step()
                optimizer.zero_grad()


def diloco(rank: Rank, notes: Notes) -> None:
    """Inner steps, then an outer one."""
    with gloo(rank):
        model = rank.model()
        weights = list(model.parameters())
        committed = torch.cat([weight.detach().flatten() for weight in weights])
        inner = torch.optim.AdamW(weights, lr=LEARNING_RATE)
        outer = torch.optim.SGD([committed], lr=OUTER_RATE, momentum=OUTER_MOMENTUM, nesterov=True)
        for _ in range(rank.steps):
            notes.next_step().compute_s = rank.compute_s
            model().backward()
            with notes.arithmetic():
                inner.step()
                inner.zero_grad()
        notes.next_step(sync=True)
        with notes.arithmetic():
            delta = committed - torch.cat([weight.detach().flatten() for weight in weights])
        dist.all_reduce(delta)
        with notes.arithmetic():
            committed.grad = delta.div_(rank.ranks)
            outer.step()
            _scatter(committed, weights)


def _scatter(flat: Tensor, weights: list[torch.nn.Parameter]) -> None:
    sizes = [weight.numel() for weight in weights]
    for weight, piece in zip(weights, flat.split(sizes), strict=True):  # type: ignore[no-untyped-call]
        weight.data.copy_(piece.view_as(weight))


@contextmanager
def gloo(rank: Rank) -> Iterator[None]:
    """A process group whose connections are open."""
    os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{rank.master}:{GLOO_PORT}",
        rank=rank.rank,
        world_size=rank.ranks,
        timeout=timedelta(seconds=PATIENCE_S),
    )
    try:
        dist.all_reduce(torch.ones(WARMUP_NUMBERS))
        dist.barrier()
        yield
        dist.barrier()
    finally:
        dist.destroy_process_group()


def hivemind(rank: Rank, notes: Notes) -> None:
    """Epochs of `hivemind.Optimizer`: one of them is one step of the global batch.

    The guide's settings: optimizer offloaded, float16 for gradients and state, and the delays that
    it calls optional left off, so that a step is that of AdamW on the whole batch. A rank that has
    made its steps continues to train until all have: no averaging shall wait for a peer that has
    left.
    """
    import hivemind as library

    where = Path(rank.directory, "hivemind-peers")
    maddr = f"/ip4/{rank.address}/tcp/{HIVEMIND_PORT}"
    peers = _lines_of(where) if rank.rank else []
    dht = library.DHT(host_maddrs=[maddr], initial_peers=peers, start=True, startup_timeout=60.0)
    if not rank.rank:
        temporary = where.with_suffix(".new")
        temporary.write_text("\n".join(map(str, dht.get_visible_maddrs())))
        temporary.rename(where)
    model = rank.model()
    optimizer = library.Optimizer(
        dht=dht,
        run_id="wan",
        batch_size_per_step=1,
        target_batch_size=rank.ranks,
        params=model.parameters(),
        optimizer=lambda parameters: _noted(torch.optim.AdamW, notes)(parameters, lr=LEARNING_RATE),
        offload_optimizer=True,
        grad_compression=library.compression.Float16Compression(),
        state_averaging_compression=library.compression.Float16Compression(),
        matchmaking_time=rank.matchmaking_s,
        averaging_timeout=rank.averaging_s,
        verbose=True,
    )
    _meet(rank, "ready")
    note, epoch = notes.next_step(), optimizer.local_epoch
    while not _all_done(rank, epoch):
        model().backward()
        note.compute_s += rank.compute_s
        optimizer.step()
        optimizer.zero_grad()
        if optimizer.local_epoch > epoch:
            note, epoch = notes.next_step(), optimizer.local_epoch
    notes.abandon()
    os._exit(0)  # its threads and child processes would take half a minute to say goodbye


def _noted(optimizer: type[torch.optim.AdamW], notes: Notes) -> type[torch.optim.AdamW]:
    """The optimizer with its steps noted as arithmetic."""

    class Noted(optimizer):  # type: ignore[misc, valid-type]
        def step(self, closure: object = None) -> object:
            with notes.arithmetic():
                return super().step(closure)

    return Noted


def _lines_of(path: Path) -> list[str]:
    deadline_s = time.monotonic() + PATIENCE_S
    while not path.exists():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"expected {path} within {PATIENCE_S} s")
        time.sleep(0.1)
    return path.read_text().split()


def _all_done(rank: Rank, epoch: int) -> bool:
    """Whether every rank has made its steps; tells the others of this one."""
    if epoch < rank.steps:
        return False
    Path(rank.directory, f"done-{rank.rank}").touch()
    return all(Path(rank.directory, f"done-{other}").exists() for other in range(rank.ranks))


def _meet(rank: Rank, word: str) -> None:
    """Waits until every rank has come here; over the disk, since the links are being measured."""
    Path(rank.directory, f"{word}-{rank.rank}").touch()
    for other in range(rank.ranks):
        _lines_of(Path(rank.directory, f"{word}-{other}"))


RANKS = {"ddp": ddp, "diloco": diloco, "hivemind": hivemind}


def main() -> None:
    """Run the rank that the command line describes."""
    rank = msgspec.json.decode(sys.argv[1], type=Rank)
    torch.set_num_threads(1)
    notes = Notes.to(rank.notes)
    RANKS[rank.method](rank, notes)
    notes.close()


if __name__ == "__main__":
    main()
