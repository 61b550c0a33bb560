"""Imports transformers without what no node on a CPU runs: half of the processor time of the
import, and the memory of it.

    torch._dynamo, sympy        a compiler, for which transformers marks functions
    torch.distributed.tensor    models spread over devices

transformers knows a torch without the second, and asks for it once. In place of the compiler a
package stands that leaves marked functions as they are. All of it is gone when the import is over:
whoever wants the compiler imports it then as usual. Where there is a card nodes compile, and all is
imported as usual.

There is no plainer way. Neither library has a switch for it: whichever model is asked for,
transformers imports the compiler outright, and `TORCHDYNAMO_DISABLE` is read by a compiler that is
imported already. Where a release asks in another way everything is imported as usual: the saving is
lost and nothing else.

It is meant for the start of a process that is a node: transformers does not offer models that are
spread over devices in this process any more.
"""

import gc
import importlib
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from node.model.configuration import no_noise, quiet_transformers

log = logging.getLogger("lockstep.node")

COMPILER = "torch._dynamo"
"""The package of torch's compiler."""

SHARDING = "torch.distributed.tensor"
"""The package of tensors that are spread over devices."""

EVERY_MODEL = ("transformers.models", "transformers.masking_utils", "transformers.modeling_layers")
"""Modules behind every model's own, which import what is left out here."""


@contextmanager
def collections_paused() -> Iterator[None]:
    """Without Python's collector of cycles: what imports make stays, and looking for garbage in it
    takes a fifth of their time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def import_transformers() -> None:
    """Imports what every model needs of transformers; does nothing where it is imported already."""
    if EVERY_MODEL[-1] in sys.modules:
        return
    try:
        with ExitStack() as stack:
            stack.enter_context(no_noise())
            is_lean = not torch.cuda.is_available()
            if is_lean and SHARDING not in sys.modules:
                stack.enter_context(_answering_no(torch.distributed, "is_available"))
            if is_lean and COMPILER not in sys.modules:
                stack.enter_context(_without_compiler())
            quiet_transformers()
            for name in EVERY_MODEL:
                importlib.import_module(name)
    except Exception as error:  # of another release: what is missing is imported as usual
        log.debug("transformers is imported whole", extra={"reason": repr(error)})


@contextmanager
def _without_compiler() -> Iterator[None]:
    """A package in the compiler's place that has its own small modules and leaves functions as they
    are.
    """
    stand_in = ModuleType(COMPILER)
    stand_in.__path__ = [str(Path(torch.__file__).parent / "_dynamo")]
    for name in ("allow_in_graph", "assume_constant_result", "disable"):
        setattr(stand_in, name, _unmarked)
    sys.modules[COMPILER] = stand_in
    torch._dynamo = stand_in
    try:
        yield
    finally:  # its modules too: the compiler would miss them as its own
        for name in [each for each in sys.modules if f"{each}.".startswith(f"{COMPILER}.")]:
            del sys.modules[name]
        del torch._dynamo


def _unmarked(function: Any = None, *_: Any, **__: Any) -> Any:
    """A decorator, with or without arguments, that changes nothing."""
    return function if callable(function) else _unmarked


@contextmanager
def _answering_no(module: Any, name: str) -> Iterator[None]:
    """A question of a module is answered with no."""
    known = getattr(module, name)
    setattr(module, name, lambda: False)
    try:
        yield
    finally:
        setattr(module, name, known)
