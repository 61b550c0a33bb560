"""A node's start imports what it runs, and no more: each name here costs tenths of a second, at
every start of every node.
"""

import subprocess
import sys

import pytest

UNUSED = (
    "accelerate",
    "datasets",
    "hivemind",
    "matplotlib",
    "numba",
    "pandas",
    "sympy",
    "torch._dynamo",
    "torch._inductor",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.distributed.tensor",
    "torch.fx.experimental.symbolic_shapes",
    "torchvision",
)
"""Modules that a node on a CPU needs for nothing, up to the end of its first pass."""

START = f"""
import sys
from lockstep.commands.join import import_node
import_node()
import numpy as np, torch
from node.model.build import build_model
from node.model.training import TrainingModel
sizes = {{"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
          "num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}}
for kind in ("llama", "mixtral"):
    shapes = build_model(kind, sizes, "meta").named_parameters()
    model = TrainingModel(build_model(kind, sizes))
    with torch.no_grad():
        known = {{name: each.shape for name, each in model.parameters.items()}}
        assert {{name: each.shape for name, each in shapes if each.is_meta}} == known
        for parameter in model.parameters.values():
            parameter.copy_(torch.linspace(-0.1, 0.1, parameter.numel()).view(parameter.shape))
    work = model.passes([np.arange(34).reshape(2, 17)])
    work.next()
    print(work.finish().loss_nats_per_token)
print(*sorted(set({UNUSED}) & sys.modules.keys()))
"""
"""The start of a node's process, two models, and a pass of each."""

AFTERWARDS = """
import torch, torch._dynamo.guards
assert torch.distributed.is_available()
twice = torch.compile(lambda x: 2 * x, backend="eager")
print(twice(torch.ones(1)).item())
assert model.recompute()
work = model.passes([np.arange(34).reshape(2, 17)])
work.next()
print(work.finish().loss_nats_per_token)
"""

USUAL = START.replace("import_node()", "", 1).replace("import import_node", "import be_nice")


def output(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_node_starts_without_what_it_does_not_run_and_computes_the_same() -> None:
    *losses, unused, compiled, again = output(START + AFTERWARDS)
    assert unused == ""
    assert compiled == "2.0", "the compiler is there for whoever wants it afterwards"
    assert again == losses[-1], "blocks are computed again by a part of it"
    *usual, whole = output(USUAL)
    assert losses == usual
    assert "torch._dynamo" in whole, "transformers does not import the compiler any more"


def test_where_there_is_a_card_the_compiler_is_imported_as_usual() -> None:
    code = (
        "import sys, torch; torch.cuda.is_available = lambda: True\n"
        "from node.model.lean_import import import_transformers; import_transformers()\n"
        "print(*sorted({'torch._dynamo', 'torch.distributed.tensor'} & sys.modules.keys()))"
    )
    assert output(code) == ["torch._dynamo torch.distributed.tensor"]


def test_collections_go_on_after_the_imports() -> None:
    code = (
        "import gc; from node.model.lean_import import collections_paused\n"
        "with collections_paused(): print(gc.isenabled())\n"
        "print(gc.isenabled())"
    )
    assert output(code) == ["False", "True"]


@pytest.mark.slow
def test_the_compiler_is_whole_after_an_import_that_took_modules_of_its_own() -> None:
    """As some releases of torch and transformers do: its modules must not stay without it."""
    code = (
        "import importlib, torch; from node.model.lean_import import _without_compiler\n"
        "with _without_compiler(): importlib.import_module('torch._dynamo.utils')\n"
        "print(torch.compile(lambda x: 2 * x, backend='eager')(torch.ones(1)).item())"
    )
    assert output(code) == ["2.0"]
