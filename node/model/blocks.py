"""The repeated blocks of a model: what the way back needs is kept or computed again, and torch
compiles them or not.

A block keeps fifteen to thirty values for each token and entry of its width. Where that does not
fit, only what each block takes is kept, one of them, and a block is computed a second time when the
way back comes to it: a third more work. Gradients are the same, dropout included.

A card computes a compiled block in fewer and longer kernels. torch makes them on first use, which
takes tens of seconds, and keeps them on disk. They are made for passes of one size, and all others
take the blocks as they are: else a shorter pass at a round's end would wait for a compiler. A block
is compiled whole or not at all. What fails costs one line, and the pass is made the plain way.
"""

import contextlib
import importlib
import logging
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from node.system.device import device_failure
from protocol.errors import LockstepError

log = logging.getLogger(__name__)

CARD_BACKEND = "inductor"
"""torch's own compiler, which makes kernels for a card."""

_NOISY = ("torch._dynamo", "torch._inductor", "torch._functorch")
"""Loggers of the compiler, which tell its users how to write models."""


class Blocks:
    """The repeated blocks of one model."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.recomputes = False
        """Whether blocks are computed again on the way back."""
        self._compiled: list[tuple[nn.Module, Any]] = []
        """Each block, and what is called in its place."""
        self._samples = 0
        """Samples of the passes for which they are compiled."""

    def recompute(self, on: bool = True) -> bool:
        """Compute blocks again from now on, or keep all. False if this type of model cannot, which
        changes nothing.
        """
        able = recompute_blocks(self._model, on)
        self.recomputes = able and on
        return able

    @property
    def are_compiled(self) -> bool:
        """Whether torch compiles them, or has."""
        return bool(self._compiled)

    def compile(self, backend: str, samples: int) -> None:
        """Have torch compile them for passes of this many samples, when the first one is made."""
        for name in _NOISY:
            logging.getLogger(name).setLevel(logging.ERROR)
        options: Any = {"backend": backend, "dynamic": False, "fullgraph": True}
        try:
            self._compiled = [
                (block, torch.compile(block.forward, **options)) for block in repeated(self._model)
            ]
        except Exception as error:  # a torch without a compiler for this Python
            self._go_on_without(error)
        self._samples = samples

    @contextlib.contextmanager
    def at_work(self, samples: int) -> Iterator[None]:
        """Meanwhile a pass of this many samples takes the compiled blocks, where they are for
        that.
        """
        is_plain = samples != self._samples or not torch.is_grad_enabled()
        compiled = [] if is_plain else self._compiled
        for block, quick in compiled:
            block.__dict__["forward"] = quick  # goes before the class's
        try:
            yield
        finally:
            for block, _ in compiled:
                del block.__dict__["forward"]

    def give_up(self, error: Exception) -> bool:
        """After an error of a pass: whether compiled blocks may be behind it. They are plain from
        now on, and the pass is to be made again.
        """
        if not self._compiled or isinstance(error, LockstepError) or device_failure(error):
            return False
        self._go_on_without(error)
        return True

    def _go_on_without(self, error: Exception) -> None:
        self._compiled = []
        reason = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        log.warning("blocks are not compiled, passes take longer: %s", reason[:200])


def repeated(model: nn.Module) -> list[nn.Module]:
    """The blocks of which a model is made: its longest list of modules."""
    lists = [each for each in model.modules() if isinstance(each, nn.ModuleList)]
    return list(max(lists, key=len, default=()))


def keep_compiled(directory: Path) -> None:
    """Have torch keep what it compiles in this directory, and compile in this process: workers for
    it would take some hundred megabytes each. What the environment says already stays.
    """
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(directory))
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")


def recompute_blocks(model: nn.Module, on: bool = True) -> bool:
    """Have a model of transformers compute its blocks again on the way back, or keep all. False if
    this type of model cannot, which changes nothing.
    """
    verb = "enable" if on else "disable"
    switches = (f"{kind}_checkpointing_{verb}" for kind in ("activation", "gradient"))
    switch = next(filter(None, (getattr(model, name, None) for name in switches)), None)
    if switch is None or not getattr(model, "supports_gradient_checkpointing", False):
        return False
    if on:
        # torch imports its compiler for it: now, and not in the middle of the first pass.
        importlib.import_module("torch._dynamo")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the older name goes, the newer one is not everywhere
        try:
            switch(*[{"use_reentrant": False}] * on)
        except (NotImplementedError, ValueError):  # a type that says it can, and cannot
            return False
    return True
