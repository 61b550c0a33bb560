"""The baselines of DeMo: data-parallel AdamW and Signum.

AdamW steps on the mean of all authors' gradients, which is the gradient of the whole batch: one
pass in float32. Its traffic is one bfloat16 gradient up and one mean down per author, as with a
perfect reduction; the rounding to bfloat16 is not made. Signum is the majority vote over the signs
of each author's own momentum (Bernstein et al., arXiv 1810.05291): one bit per parameter up and one
down.
"""

import numpy as np
import torch
from torch import Tensor

from tests.benchmarks.parity.demo import Traffic
from tests.benchmarks.parity.task import Fixture

ADAM_EPSILON = 1e-8

_BFLOAT16_BYTES = 2


class AdamW:
    """torch's own AdamW with clipped gradients; weight decay on matrices only."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture, cell = fixture, fixture.cell
        parameters = fixture.trainee.parameters.values()
        groups = [
            {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": cell.weight_decay},
            {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
        ]
        self._optimizer = torch.optim.AdamW(
            groups, lr=cell.learning_rate, betas=cell.adam_decays, eps=ADAM_EPSILON
        )
        self._step = 0

    def step(self) -> Traffic:
        """One step on the whole batch."""
        fixture = self._fixture
        fixture.gradients(fixture.samples(self._step))
        torch.nn.utils.clip_grad_norm_(fixture.trainee.parameters.values(), fixture.cell.clip)
        for group in self._optimizer.param_groups:
            group["lr"] = fixture.learning_rate(self._step)
        self._optimizer.step()
        self._step += 1
        dense = _BFLOAT16_BYTES * fixture.layout.parameters
        return Traffic(dense, dense)

    def stand_at_committed(self) -> None:
        """The network always stands at the parameters to measure."""


class Signum:
    """Each author's momentum, and the sign of the sum of their signs."""

    def __init__(self, fixture: Fixture) -> None:
        self._fixture = fixture
        self._momenta = [
            {name: torch.zeros_like(tensor) for name, tensor in fixture.parameters.items()}
            for _ in range(fixture.cell.authors)
        ]
        self._step = 0

    def step(self) -> Traffic:
        """M <- beta * M + (1 - beta) * G for each author;  P <- P * decay - lr * sign(sum of
        sign(M)).
        """
        fixture = self._fixture
        samples = fixture.samples(self._step).reshape(
            len(self._momenta), -1, fixture.task.sequence_length + 1
        )
        votes = {name: torch.zeros_like(tensor) for name, tensor in fixture.parameters.items()}
        for mine, momentum in zip(samples, self._momenta, strict=True):
            for name, gradient in fixture.gradients(mine).items():
                if gradient is not None:
                    momentum[name].lerp_(gradient, 1 - fixture.cell.momentum_decay)
                votes[name] += momentum[name].sign()
        rate, decay = fixture.rates(self._step)
        for name, tensor in fixture.parameters.items():
            tensor.mul_(decay).add_(votes[name].sign(), alpha=-rate)
        self._step += 1
        bits = packed_bytes(votes)
        return Traffic(bits, bits)

    def stand_at_committed(self) -> None:
        """The network always stands at the parameters to measure."""


def packed_bytes(signs: dict[str, Tensor]) -> int:
    """Bytes of all signs at one bit each."""
    return len(np.packbits(torch.cat([sign.flatten() for sign in signs.values()]).numpy() > 0))
