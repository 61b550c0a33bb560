"""All that an object holds, by its path: what two objects that go on alike must have equal."""

import enum
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch

from tests.node.exact.optimizer.pair import digest

Passed = Mapping[str, str]
"""Attributes that do not count, as "Class.name", each with its reason."""

_PLAIN = (int, float, complex, str, bytes, bool, type(None), enum.Enum, torch.dtype, torch.device)
_NAMED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType)


def reachable(thing: object, passed: Passed) -> dict[str, str]:
    """The values that can be reached from an object, as text, by their paths. An object that is
    met a second time is named by its first path.
    """
    return dict(_walk(thing, "", passed, {}))


def _walk(
    thing: Any, path: str, passed: Passed, seen: dict[int, tuple[str, Any]]
) -> Iterator[tuple[str, str]]:
    if isinstance(thing, _PLAIN):
        yield path, repr(thing)
    elif isinstance(thing, _NAMED):
        yield path, getattr(thing, "__qualname__", str(thing))
    elif isinstance(thing, torch.Tensor):
        yield path, f"{thing.dtype} {tuple(thing.shape)} {digest([thing])}"
    elif id(thing) in seen:
        yield path, f"is {seen[id(thing)][0]}"
    else:
        seen[id(thing)] = path, thing  # kept, so that no other object gets its identity
        yield path, f"a {type(thing).__name__}"
        for name, inner in _parts(thing):
            if f"{type(thing).__name__}{name}" not in passed:
                yield from _walk(inner, f"{path}{name}", passed, seen)


def _parts(thing: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(thing, Mapping):
        for key, value in thing.items():
            yield f"[{digest([key]) if isinstance(key, torch.Tensor) else repr(key)}]", value
    elif isinstance(thing, list | tuple | set | frozenset):
        for place, value in enumerate(thing):
            yield f"[{place}]", value
    slots = (name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ()))
    names = [*getattr(thing, "__dict__", {}), *(name for name in slots if hasattr(thing, name))]
    for name in sorted({*names} - {"__dict__", "__weakref__"}):
        yield f".{name}", getattr(thing, name)
