"""Imports transformers without what no node runs: half of the processor time of a node's start.

    torch._dynamo, sympy        a compiler, for which transformers marks functions
    torch.distributed.tensor    models spread over devices; a node's model lies on one
    scipy, sklearn              losses of image models, guessed tokens

transformers knows a torch without the second and an installation without the third, and asks for
them once. In place of the compiler a package stands that leaves marked functions as they
are. All of it is gone when the import is over: whoever wants the compiler imports it then as usual.

There is no plainer way. Neither library has a switch for it: whichever model is asked for,
transformers imports the compiler outright and whatever else is installed, and `TORCHDYNAMO_DISABLE`
is read by a compiler that is imported already. The packages may be there for other programs. So the
questions are answered here, and where a release asks in another way everything is imported as
usual: the saving is lost and nothing else.

It is meant for the start of a process that is a node, which never compiles: transformers does not
offer models that are spread over devices in this process any more.
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

LEFT_OUT = ("scipy", "sklearn")
"""Packages that transformers takes where they are installed."""


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
            if SHARDING not in sys.modules:
                stack.enter_context(_answering_no(torch.distributed, "is_available"))
            if COMPILER not in sys.modules:
                stack.enter_context(_without_compiler())
            quiet_transformers()
            stack.enter_context(_without_packages())
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
def _without_packages() -> Iterator[None]:
    """Makes transformers believe that the packages are not installed, and read its folder of
    models once.
    """
    utils: Any = importlib.import_module("transformers.utils")
    internal: Any = importlib.import_module("transformers.utils.import_utils")
    read = internal.create_import_structure_from_path
    with ExitStack() as stack:
        for name in LEFT_OUT:
            for module in (utils, internal):
                stack.enter_context(_answering_no(module, f"is_{name}_available"))
        internal.create_import_structure_from_path = lambda path: read(_folder(path))
        try:
            yield
        finally:
            internal.create_import_structure_from_path = read


@contextmanager
def _answering_no(module: Any, name: str) -> Iterator[None]:
    """A question of a module is answered with no."""
    known = getattr(module, name)
    setattr(module, name, lambda: False)
    try:
        yield
    finally:
        setattr(module, name, known)


def _folder(path: str | Path) -> Path:
    return Path(path).parent if Path(path).suffix == ".py" else Path(path)
