"""A model's shapes without memory for it, and without torch's compiler.

On torch's device "meta" every tensor is without values, and a few functions, `arange` above all, go
through code for which torch imports its compiler: a second at each start of a node. Here only what
takes memory is on that device; the small tensors that a model computes for itself are as always.
"""

from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_LARGE = frozenset((torch.empty, torch.full, torch.ones, torch.rand, torch.randn, torch.zeros))
"""Functions that make the tensors of which parameters are made."""

_DRAWING = frozenset(("normal_", "trunc_normal_", "uniform_"))
"""Names of functions that give a tensor random values."""


class ShapesOnly(TorchFunctionMode):
    """Models that are made meanwhile take no memory. Raises whatever torch raises where a model
    computes with values that are not there.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func in _LARGE and kwargs.get("device") is None:
            kwargs["device"] = "meta"
        elif getattr(func, "__name__", "") in _DRAWING:
            drawn = kwargs["tensor"] if "tensor" in kwargs else args[0]
            if drawn.is_meta:
                return drawn
        return func(*args, **kwargs)
