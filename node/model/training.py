"""The network: built from the run file, given gradients until the bell, evaluated.

Any causal language model that transformers has code for is built from its configuration alone, in
float32, without the network and without code from anywhere else. `GradientAccumulation` turns
samples into `.grad`, the mean over the samples managed before the bell. Gradients are local
business: autocast, thread counts and the size of a micro-batch may differ between nodes, for
nothing here changes a parameter.

transformers takes seconds to import, so it is imported when the first model is built.
"""

import contextlib
import difflib
import logging
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from protocol.errors import LocalProtocolError, SettingsError

_log = logging.getLogger(__name__)

MICRO_BATCH_SAMPLES = 8
"""Samples in one forward and backward pass unless the node's settings say otherwise."""

_REFUSED_FIELDS = frozenset(
    {"attn_implementation", "auto_map", "dtype", "quantization_config", "torch_dtype"}
)
"""Fields that could load code from elsewhere or leave float32: no run file may set them."""

_TOKEN_FIELDS = ("bos_token_id", "eos_token_id", "pad_token_id")

Tokens = np.ndarray | Tensor
"""Samples as int64 [samples, sequence_length + 1]: inputs are all but the last, targets all but the
first."""


_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class RoundWork:
    """The work of one node in one round."""

    samples: int
    """Samples whose gradients are in `.grad`: the first ones of what was offered."""

    loss_nats_per_token: float
    """Mean cross-entropy over them; not finite when the numbers have blown up, and then neither is
    `.grad`."""

    tokens: int
    """Targets predicted."""


def build_model(model_type: str, config: Mapping[str, Any]) -> nn.Module:
    """The causal language model of this type and configuration: float32, on the CPU, in training
    mode.

    config: fields of the type's transformers configuration, as the run file holds them. Initial
    values are transformers' own (`genesis.fill` replaces them); torch's random state is left as it
    was. Raises `SettingsError` naming the field that is unknown or out of bounds.
    """
    transformers = quiet_transformers()
    values = _checked_fields(model_type, config)
    with torch.random.fork_rng(devices=[]), _no_noise():
        try:
            full = transformers.AutoConfig.for_model(model_type, **values)
            _drop_foreign_tokens(full, values)
            model = transformers.AutoModelForCausalLM.from_config(
                full, dtype=torch.float32, trust_remote_code=False
            )
        except Exception as error:  # transformers raises whatever a configuration happens to break
            problem = " ".join(str(error).split())[:300] or type(error).__name__
            raise SettingsError(f"model.config for type {model_type!r}: {problem}") from error
    trainee: nn.Module = model.train()
    return trainee


def named_parameters_once(model: nn.Module) -> dict[str, nn.Parameter]:
    """Trainable parameters in sorted-name order; of tied weights only the first name."""
    first: dict[int, tuple[str, nn.Parameter]] = {}
    for name, parameter in sorted(model.named_parameters(remove_duplicate=False)):
        if parameter.requires_grad:
            first.setdefault(id(parameter), (name, parameter))
    return dict(first.values())


def require_fits(model: nn.Module, vocabulary_size: int, sequence_length: int) -> None:
    """Raises `SettingsError` unless the model knows every token and position of the data: a device
    would find out in the middle of a pass and name no cause.
    """
    config: Any = model.config
    if config.vocab_size < vocabulary_size:
        raise SettingsError(
            f"model.config.vocab_size: expected at least {vocabulary_size}, the tokens of the "
            "data, "
            f"got {config.vocab_size}"
        )
    positions = getattr(config, "max_position_embeddings", None)
    if positions is not None and positions < sequence_length:
        raise SettingsError(
            f"model.config: expected at least data.sequence_length = {sequence_length} positions, "
            f"got {positions}"
        )


class TrainingModel:
    """A model on its device that does the work of a round.

    `micro_batch_max` (samples per pass) is halved for good when a pass does not fit the device's
    memory.
    """

    def __init__(
        self,
        model: nn.Module,
        device: torch.device | str = "cpu",
        micro_batch_max: int = MICRO_BATCH_SAMPLES,
    ) -> None:
        if micro_batch_max < 1:
            raise SettingsError(f"micro_batch: expected at least 1 sample, got {micro_batch_max}")
        self.device = torch.device(device)
        self.model = model.to(self.device)
        self.parameters = named_parameters_once(model)
        self.micro_batch_max = micro_batch_max

    def passes(self, batches: Iterable[Tokens]) -> "GradientAccumulation":
        """The passes of a round over micro-batches, none of them made yet."""
        self.model.train()
        return GradientAccumulation(self, batches)

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

    def nats(self, piece: Tensor) -> Tensor:
        """Cross-entropy summed over all targets, float32 scalar. piece: int64 [samples, length +
        1].
        """
        with self._autocast():
            logits = self.model(
                input_ids=piece[:, :-1], use_cache=False
            ).logits  # [samples, length, vocabulary]
        return cross_entropy(logits.float().flatten(0, 1), piece[:, 1:].flatten(), reduction="sum")

    def pieces(self, batches: Iterable[Tokens]) -> Iterator[Tensor]:
        """The same samples in passes of at most `micro_batch_max`, on the device."""
        for batch in batches:
            size = self.micro_batch_max
            for first in range(0, len(batch), size):
                yield torch.as_tensor(batch[first : first + size]).to(self.device)

    def _autocast(self) -> contextlib.AbstractContextManager[Any]:
        """bfloat16 where the GPU computes in it; float32 elsewhere."""
        if self.device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False):
            return torch.autocast("cuda", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def in_memory(self, attempt: Callable[[], _Result]) -> _Result:
        """The result of `attempt`, made again with smaller micro-batches as long as it runs out of
        memory.
        """
        while True:
            try:
                return attempt()
            except torch.OutOfMemoryError as error:
                problem = str(error)
            # Out here the error is gone, whose traceback held on to the tensors of the failed pass.
            self._halve(problem)

    def _halve(self, problem: str) -> None:
        if self.micro_batch_max == 1:
            raise SettingsError(
                f"one sample does not fit the memory of {self.device}: {problem[:200]}; expected a "
                "device with "
                "more memory, a smaller model or a shorter sequence_length"
            )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.micro_batch_max //= 2
        _log.warning(
            "out of memory on %s: micro-batch halved to %d samples",
            self.device,
            self.micro_batch_max,
        )


class GradientAccumulation:
    """One round's work, pass by pass: between two of them the bell may ring, or the parameters may
    move.
    """

    def __init__(self, trainee: TrainingModel, batches: Iterable[Tokens]) -> None:
        self._trainee, self._source = trainee, iter(batches)
        self._drawn: list[Tokens] = []
        self.samples = 0
        """Samples whose gradients are summed so far."""
        self._begin()

    def next(self) -> bool:
        """Make one pass; False when no sample is left. Raises `SettingsError` when not even one
        sample fits the device's memory.
        """
        return self._trainee.in_memory(self._pass)

    def finish(self) -> RoundWork:
        """Leaves the mean gradient over the samples done, of which there must be one, in every
        parameter's `.grad`.
        """
        if self.samples == 0:
            raise LocalProtocolError("expected at least one sample to train on, got none")
        for parameter in self._trainee.parameters.values():
            if parameter.grad is not None:
                parameter.grad /= self.samples
        return RoundWork(self.samples, self._nats / self._tokens, self._tokens)

    def _begin(self) -> None:
        """Zeros, not None: a parameter that no sample touched has a gradient too."""
        for parameter in self._trainee.parameters.values():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()
        self.samples, self._tokens, self._nats, self._failed = 0, 0, 0.0, False
        self._pieces = self._trainee.pieces(chain(list(self._drawn), self._recorded()))

    def _pass(self) -> bool:
        if (
            self._failed
        ):  # it ran out of memory and has left part of its gradients behind: all starts again
            self._begin()
        piece = next(self._pieces, None)
        if piece is None:
            return False
        self._failed = True
        loss = self._trainee.nats(
            piece
        )  # summed, so that micro-batches of unlike sizes weigh by their samples
        (loss / (piece.shape[1] - 1)).backward()  # type: ignore[no-untyped-call]
        self._nats += loss.item()
        if piece.is_cuda:  # CUDA only queues work, and a queue would overrun the bell
            torch.cuda.synchronize(piece.device)
        self.samples += len(piece)
        self._tokens += len(piece) * (piece.shape[1] - 1)
        self._failed = False
        return True

    def _recorded(self) -> Iterator[Tokens]:
        """The batches as they are drawn, which are kept: for a second attempt in smaller pieces."""
        for batch in self._source:
            self._drawn.append(batch)
            yield batch


def quiet_transformers() -> Any:
    """The transformers package, imported now if it was not, with its hints for interactive use
    turned off.

    Its kernels from the hub are code from the network, for which some types would ask: never here.
    """
    os.environ["USE_HUB_KERNELS"] = "NO"
    with _no_noise():
        import transformers

    transformers.logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    transformers.logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    return transformers


@contextlib.contextmanager
def _no_noise() -> Iterator[None]:
    """Without foreign Python warnings: about deprecations inside transformers, which no user can
    act on.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _checked_fields(model_type: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The fields as keyword arguments; transformers itself would accept any name in silence."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    known_types = sorted(CONFIG_MAPPING.keys())
    if model_type not in known_types:
        raise SettingsError(
            "model.type: expected a model type of "
            f"transformers{_closest(model_type, known_types)}, got {model_type!r}"
        )
    with _no_noise():
        config_class = CONFIG_MAPPING[model_type]
        known = {*config_class().to_dict(), *config_class.attribute_map} - _REFUSED_FIELDS
    known = {name for name in known if not name.startswith("_")}
    for name in config:
        if name not in known:
            raise SettingsError(
                f"model.config.{name}: expected a field of "
                f"{config_class.__name__}{_closest(name, sorted(known))}"
            )
    return dict(config)


def _closest(name: str, known: list[str]) -> str:
    likely = difflib.get_close_matches(name, known, n=3)
    return f" (close: {', '.join(likely)})" if likely else ""


def _drop_foreign_tokens(config: Any, given: Mapping[str, Any]) -> None:
    """A type's default special tokens belong to its published vocabulary; outside ours they name
    nothing.
    """
    for field in _TOKEN_FIELDS:
        token = getattr(config, field, None)
        if field not in given and isinstance(token, int) and token >= config.vocab_size:
            setattr(config, field, None)
