"""DeMo in your own training loop: several processes of this machine train a tiny character model.

    torchrun --nproc-per-node 2 examples/torchrun_demo.py

The text is a source file of the Python standard library, so nothing is downloaded. Every rank
trains on its own samples, gradients are never averaged, and only a few coefficients travel, every
fifth step. At the end all ranks compare a digest of their parameters.
"""

import argparse
import hashlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, gelu

from lockstep import DeMo, parameter_groups

CONTEXT = 16
"""Number of preceding bytes that the model sees when it predicts the next one."""


class CharacterModel(torch.nn.Module):
    """Predicts the next byte from the last CONTEXT bytes: an embedding and two layers."""

    def __init__(self, width: int = 128) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(256, 32)
        self.hidden = torch.nn.Linear(CONTEXT * 32, width)
        self.output = torch.nn.Linear(width, 256)

    def forward(self, context: torch.Tensor) -> torch.Tensor:
        """Logits [n, 256] after contexts [n, CONTEXT] of bytes."""
        return self.output(gelu(self.hidden(self.embedding(context).flatten(1))))


def digest_of(model: torch.nn.Module) -> str:
    """SHA-256 of all parameters' bits."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().contiguous().numpy().tobytes())
    return digest.hexdigest()


def train(steps: int, batch: int) -> tuple[CharacterModel, list[float]]:
    """The model and its losses (nats per character, mean of all ranks) after every step."""
    text = torch.tensor(list(Path(argparse.__file__).read_bytes()))
    torch.manual_seed(0)  # every rank starts from the same parameters ...
    model = CharacterModel()
    optimizer = DeMo(parameter_groups(model), lr=0.024)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    samples = torch.Generator().manual_seed(1 + dist.get_rank())  # ... and draws samples of its own
    losses = []
    for step in range(steps):
        starts = torch.randint(len(text) - CONTEXT, (batch,), generator=samples)
        contexts = text[starts[:, None] + torch.arange(CONTEXT)]
        optimizer.zero_grad()
        loss = cross_entropy(model(contexts), text[starts + CONTEXT])
        loss.backward()
        optimizer.step()
        schedule.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        losses.append(mean.item() / dist.get_world_size())
        if dist.get_rank() == 0 and (step % 20 == 0 or step == steps - 1):
            print(f"step {step:4d}  loss {losses[-1]:.3f}", flush=True)
    return model, losses


def main() -> None:
    """Trains; exits with an error unless the loss fell and all ranks hold the same bits."""
    parser = argparse.ArgumentParser(
        description="train a tiny character model with DeMo under torchrun"
    )
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=128, help="samples per rank and step")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model, losses = train(arguments.steps, arguments.batch)
    own_rank, digests = dist.get_rank(), [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest_of(model))
    dist.destroy_process_group()
    if len(set(digests)) != 1:
        raise SystemExit(f"expected equal parameters on all ranks, got digests {digests}")
    if losses[-1] >= losses[0]:
        raise SystemExit(f"expected the loss to fall, got {losses[0]:.3f} to {losses[-1]:.3f}")
    if own_rank == 0:  # one writer: the lines of several would mix
        for rank, digest in enumerate(digests):
            print(f"rank {rank} of {len(digests)} agrees: parameters {digest[:16]}", flush=True)


if __name__ == "__main__":
    main()
