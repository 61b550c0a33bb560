"""Models whose large parameters of noise nobody has drawn, so that they take no memory.

A system gives a process memory when it is first touched. The noise with which types begin is
replaced by that of the run (`node.replica.genesis`), parameter by parameter, so there is no need
for it: what is not touched until then takes no memory, and of a rank's network that is all but its
part. Constants, formulas, buffers and what is small are made as ever.

Noise is drawn after all when anything else is about to be done with it than to draw it anew or to
fill it with one value.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

LARGE = 2**18
"""Entries from which on noise is not drawn: a megabyte."""

_FILLING = frozenset(("fill_", "zero_"))
"""Functions that give a tensor one value."""

_LOOKING = frozenset(
    ("__get__", "__set__", "detach", "dim", "numel", "requires_grad_", "size", "untyped_storage")
)
"""Functions that read no values: of a tensor, or of another one in the same memory."""


class Undrawn(TorchFunctionMode):
    """Models that are made meanwhile are such ones."""

    def __init__(self) -> None:
        super().__init__()
        self._left = dict[int, tuple[Tensor, Callable[[], Any]]]()
        """By address: a tensor, which keeps it from being used again, and how to draw it."""

    def has_left(self, tensor: Tensor) -> bool:
        """Whether a tensor is noise that was not drawn."""
        return _address(tensor) in self._left

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs, name = kwargs or {}, getattr(func, "__name__", "")
        every = list(_tensors((args, kwargs)))
        if _is_noise(name, args, kwargs) and _is_large_and_whole(drawn := every[0]):
            self._left[_address(drawn)] = drawn, partial(func, *args, **kwargs)
            return drawn
        if name not in _LOOKING:
            for each in every:
                left = self._left.pop(_address(each), None)
                if left and not (name in _FILLING and each.numel() == left[0].numel()):
                    left[1]()
        return func(*args, **kwargs)


def _is_noise(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function draws values around zero, and not all the same."""
    if name == "kaiming_uniform_":
        return True
    given = dict(zip(("tensor", "mean", "std"), args, strict=False)) | kwargs
    return name == "normal_" and given.get("mean", 0) == 0 and given.get("std", 1) != 0


def _is_large_and_whole(tensor: Tensor) -> bool:
    """Whether nothing else is in a tensor's memory."""
    is_whole = tensor.untyped_storage().nbytes() == tensor.nbytes and tensor.is_contiguous()
    return tensor.device.type == "cpu" and tensor.numel() >= LARGE and is_whole


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _tensors(value: Any) -> Iterator[Tensor]:
    """All tensors in the arguments of a function."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
