"""The repeated blocks of a model, which keep what the way back needs, or compute it again.

A block keeps fifteen to thirty values for each token and entry of its width. Where that does not
fit, only what each block takes is kept, one of them, and a block is computed a second time when the
way back comes to it: a third more work. Gradients are the same, dropout included.
"""

import importlib
import warnings

from torch import nn


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
