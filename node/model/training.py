"""The network at work: given gradients until the bell, evaluated.

`node.model.passes` turns samples into `.grad`, the mean over the samples managed before the bell.
Gradients are local business: autocast, thread counts and the size of a micro-batch may differ
between nodes, for nothing here changes a parameter.

A node of many devices is one of many ranks, which share the passes (`node.ranks`); the network
here is that of one.
"""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from node.model.blocks import Blocks
from node.model.build import asks_for_balance, balance_weight, named_parameters_once
from node.model.embedding import add_rows_in_place
from node.model.head import backward_by_pieces, left_out, nats_by_pieces, plain_head
from node.model.passes import BatchPasses, GradientAccumulation, Tokens
from node.model.precision import gradient_of, multiplies_bfloat16
from node.model.queue import queue_of
from node.system.device import crowded
from protocol.errors import DeviceError, SettingsError
from protocol.planner.activations import PIECE_ENTRIES

_log = logging.getLogger(__name__)

MICRO_BATCH_SAMPLES = 8
"""Samples in one forward and backward pass unless the node's settings say otherwise."""

_Result = TypeVar("_Result")


class OtherRanks(Protocol):
    """The other ranks of a node, which share its passes (`node.ranks`)."""

    @property
    def count(self) -> int:
        """Ranks of the node."""

    def passes(self, trainee: "TrainingModel", batches: Iterable[Tokens]) -> BatchPasses:
        """The passes of all ranks over micro-batches."""

    def make_pass(self, trainee: "TrainingModel", samples: Tensor, *, anew: bool) -> float:
        """Add the gradients of samples to those of all ranks, which are zero before where they
        begin `anew`; the cross-entropy of all targets.
        """

    def moved(self) -> None:
        """The parameters have changed since the last pass."""


class TrainingModel:
    """A model on its device that does the work of a round.

    `micro_batch_max` (samples per pass) is halved for good when a pass does not fit a
    device's memory; where one sample does not, blocks are computed again on the way back.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        micro_batch_max: int = MICRO_BATCH_SAMPLES,
        dtype: torch.dtype = torch.float32,
        gradient_dtype: torch.dtype = torch.float32,
    ) -> None:
        """`dtype` is that of its weights, `gradient_dtype` that of its gradients, where this torch
        can have another one for them.
        """
        if micro_batch_max < 1:
            raise SettingsError(f"micro_batch: expected at least 1 sample, got {micro_batch_max}")
        self.device = torch.device(device)
        self.dtype, self.gradient_dtype = dtype, gradient_dtype
        for parameter in model.parameters():  # not buffers, as rotations need all bits
            parameter.data = parameter.data.to(dtype)
            if dtype != gradient_dtype and hasattr(parameter, "grad_dtype"):
                parameter.grad_dtype = gradient_dtype
        self.model = model.to(self.device)
        add_rows_in_place(self.model)
        self._head = plain_head(self.model)
        self.parameters = named_parameters_once(model)
        self.micro_batch_max = micro_batch_max
        self._balance = asks_for_balance(model), balance_weight(model)
        self.blocks, self.queue = Blocks(self.model), queue_of(self.device)
        self.crew: OtherRanks | None = None
        """The ranks that share its passes; None where it makes them alone."""
        self._has_fitted, self._has_told = False, False

    def recompute(self, on: bool = True) -> bool:
        """Compute blocks again on the way back from now on, or keep all. False if this type of
        model cannot.
        """
        return self.blocks.recompute(on)

    @property
    def recomputes(self) -> bool:
        """Whether blocks are computed again on the way back."""
        return self.blocks.recomputes

    @property
    def at_once(self) -> int:
        """Samples in a pass of all ranks."""
        return self.micro_batch_max * (self.crew.count if self.crew else 1)

    def try_pass(self, samples: Tokens) -> float:
        """Make one pass of all ranks over at most `at_once` samples, whose gradients are of no use,
        and wait for it. Returns the cross-entropy summed over all targets.
        """
        if self.crew:
            return self.crew.make_pass(self, torch.as_tensor(samples), anew=True)
        (piece,) = self.pieces([samples])
        return self.gradient(piece).item()

    def compile(self, backend: str, samples: int, length: int) -> None:
        """Have torch compile the blocks for passes of at most `samples` of `length` tokens, now, by
        one of them. A model that torch cannot compile goes on as it is.

        Raises what `in_memory` raises.
        """
        samples = min(samples, self.micro_batch_max)
        self.blocks.compile(backend, samples)
        self.model.train()
        self.moved()
        self.give_back_gradients()  # the compiler knows none of another type than their weights
        tokens = torch.zeros((samples, length + 1), dtype=torch.int64)
        self.in_memory(lambda: [self.gradient(each).item() for each in self.pieces([tokens])])
        self.give_back_gradients()

    def moved(self) -> None:
        """The parameters have changed since the last pass: other ranks load them before the next
        one.
        """
        if self.crew:
            self.crew.moved()

    def passes(self, batches: Iterable[Tokens]) -> BatchPasses:
        """The passes of a round over micro-batches, none of them made yet."""
        self.model.train()
        self.moved()
        return self.crew.passes(self, batches) if self.crew else GradientAccumulation(self, batches)

    @torch.no_grad()
    def evaluate(self, samples: Tokens) -> float:
        """Mean cross-entropy in nats per token, without dropout; gradients and random states stay
        untouched.
        """
        was_training = self.model.training
        self.model.eval()
        try:
            nats = self.in_memory(
                lambda: sum(self.nats(piece).item() for piece in self.pieces([samples]))
            )
            return nats / (len(samples) * (samples.shape[1] - 1))
        finally:
            self.model.train(was_training)

    def gradient(self, piece: Tensor, weight: float = 1.0) -> Tensor:
        """Add the gradients of one piece to `.grad`, on this device, which may end it later.
        Returns the cross-entropy summed over all targets, a scalar. What is minimised is its mean
        over a sample's targets, summed over the samples, and the experts' balance loss for each
        sample where the configuration asks for it: sums, so that micro-batches of unlike sizes
        weigh by their samples. All of it counts with `weight`.
        """
        piece = piece.to(self.device)
        change, scale = None, weight / (piece.shape[1] - 1)
        with self.blocks.at_work(len(piece)):  # those that are computed again are the same ones
            output, head = self._output(piece)
            if head is None:
                nats = self._nats(output.logits, piece)
                root = nats * scale
            else:
                with self._autocast():
                    root = output.logits
                    nats, change = self._backward(root, head, piece[:, 1:], scale)
            roots = [root, *self._imbalance(output, weight * len(piece))]
            torch.autograd.backward(roots, [change, None][: len(roots)])
        return nats.detach()

    def _backward(
        self, hidden: Tensor, head: nn.Linear, targets: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        return backward_by_pieces(hidden, head, targets, scale)

    def zero_gradients(self) -> None:
        """Zeros, not None: a parameter that no sample touched has a gradient too."""
        for parameter in self.parameters.values():
            gradient_of(parameter).zero_()

    def give_back_gradients(self) -> None:
        """Let go of the memory of all gradients."""
        for parameter in self.parameters.values():
            parameter.grad = None

    def nats(self, piece: Tensor) -> Tensor:
        """Cross-entropy summed over all targets, float32 scalar, without gradients. piece: int64
        [samples, length + 1].
        """
        output, head = self._output(piece)
        if head is None:
            return self._nats(output.logits, piece)
        with self._autocast():
            return self._nats_by_pieces(output.logits, head, piece[:, 1:])

    def _nats_by_pieces(self, hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
        return nats_by_pieces(hidden, head, targets)

    def _imbalance(self, output: Any, samples: float) -> list[Tensor]:
        """The experts' balance loss of some samples, a float32 scalar, where it is asked for."""
        is_asked_for, weight = self._balance
        if not is_asked_for:
            return []
        balance = getattr(output, "aux_loss", None)
        if balance is None or weight is None:
            raise SettingsError(
                "model.config.output_router_logits: expected a type that computes a balance "
                "loss of its experts, this one gives none; leave the field out"
            )
        return [samples * weight * balance.float()]

    def _output(self, piece: Tensor) -> tuple[Any, nn.Linear | None]:
        """The model's output for a piece. Where its logits would be many, or the head's gradient
        large, they are what the head takes, [samples, length, width], and the head is given too.
        """
        tokens, head = piece[:, 1:].numel(), self._head
        if head and head.out_features * max(tokens, head.in_features) > PIECE_ENTRIES:
            with left_out(head) as untouched:
                output = self._forward(piece)
            if untouched(output.logits):
                return output, head
            self._head = output = None
        output = self._forward(piece)
        if output.logits.numel() > PIECE_ENTRIES and not self._has_told:
            self._has_told = True
            _log.warning(
                "the logits of a pass stand whole in memory: this type of model has no plain "
                "matrix that makes them, or changes what it makes"
            )
        return output, None

    def _forward(self, piece: Tensor) -> Any:
        with self._autocast():
            return self.model(input_ids=piece[:, :-1], use_cache=False)

    def _nats(self, logits: Tensor, piece: Tensor) -> Tensor:
        """logits: [samples, length, vocabulary]."""
        whole = logits.float().flatten(0, 1)
        return cross_entropy(whole, piece[:, 1:].flatten(), reduction="sum")

    def pieces(self, batches: Iterable[Tokens]) -> Iterator[Tensor]:
        """The same samples in passes of at most `micro_batch_max`, on the device."""
        for batch in batches:
            size = self.micro_batch_max
            for first in range(0, len(batch), size):
                yield torch.as_tensor(batch[first : first + size]).to(
                    self.device, non_blocking=True
                )

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 where the GPU computes in it; elsewhere, and of weights in bfloat16, what the
        weights are.
        """
        exact = any(each.dtype == torch.float32 for each in self.parameters.values())
        if exact and self.device.type == "cuda" and multiplies_bfloat16(self.device):
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def in_memory(self, attempt: Callable[[], _Result]) -> _Result:
        """The result of `attempt`, made again with smaller micro-batches as long as it runs out of
        memory, and in the end with blocks that are computed again; without compiled blocks where
        they fail.

        Raises `SettingsError` when one sample does not fit, `DeviceError` when it would if other
        programs had not taken the memory.
        """
        while True:
            try:
                result = attempt()
                self._has_fitted = True
                return result
            except torch.OutOfMemoryError as error:
                problem = str(error)
            except Exception as error:
                if not self.blocks.give_up(error):
                    raise
                continue
            # Out here the error is gone, whose traceback held on to the tensors of the failed pass.
            self._take_less(problem)

    def _take_less(self, problem: str) -> None:
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        if self.micro_batch_max == 1:
            if not self.recomputes and self.recompute():
                _log.warning(
                    "out of memory on %s: activations are computed again, a pass takes a third "
                    "longer",
                    self.device,
                )
                return
            if self._has_fitted or crowded(self.device):
                took = f"other programs took the memory of {self.device}"
                raise DeviceError(f"{took}: {problem[:200]}")
            raise SettingsError(
                f"one sample does not fit the memory of {self.device}: {problem[:200]}; expected a "
                "device with "
                "more memory, a smaller model or a shorter sequence_length"
            )
        self.micro_batch_max //= 2
        _log.warning(
            "out of memory on %s: micro-batch halved to %d samples",
            self.device,
            self.micro_batch_max,
        )
