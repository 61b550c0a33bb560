"""A pass in each of its ways: logits whole and by pieces, activations kept and computed again, and
in the end blocks that torch compiles.

Nodes do not compile: `compiled` tells whether they should. Its backend is torch's own on a card; on
a CPU it is "aot_eager", which compiles nothing and only shows that the way is open.
"""

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from node.model.training import TrainingModel
from protocol.planner.activations import pass_bytes
from protocol.planner.parameters import size_of
from tests.benchmarks.accelerator.authors import replica_on, spec_of, tokens_of
from tests.benchmarks.accelerator.cards import flops_per_token
from tests.benchmarks.accelerator.parts import Findings
from tests.benchmarks.accelerator.runs import against_peak
from tests.benchmarks.accelerator.sizes import Sizes
from tests.benchmarks.passes.variants import measured

SAMPLES = 8


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """Rows of each way, with the part of the card's peak; then the same with compiled blocks."""
    device, spec = torch.device(sizes.device), spec_of(sizes.trained)
    trainee, length = replica_on(device, spec).trainee, sizes.sequence_length
    tokens = tokens_of(spec, 0, SAMPLES, length)
    about: Findings = {
        "samples": SAMPLES,
        "length": length,
        "predicted_bytes_in_float32": {
            "kept": pass_bytes(spec.model, SAMPLES, length),
            "recomputed": pass_bytes(spec.model, SAMPLES, length, recomputes=True),
        },
    }
    flops = flops_per_token(size_of(spec.model).parameters, spec.model.config, length)
    found: Findings = {}
    for name in ("rows", "compiled"):
        if name == "compiled":
            compile_blocks(trainee, "inductor" if device.type == "cuda" else "aot_eager")
        try:
            for rows in measured(trainee, tokens, sizes.repeats):
                found[name] = [
                    {**each, **against_peak(sizes, each["tokens_per_second"], flops)}
                    for each in rows
                ]
                yield {**about, **found}
        except Exception as error:  # of the compiler, which may lack what it needs
            if name == "rows":
                raise
            found["compiled"] = f"failed: {type(error).__name__}: {str(error)[:300]}"
            yield {**about, **found}


def compile_blocks(trainee: TrainingModel, backend: str) -> None:
    """Have torch compile the repeated blocks, which are the longest list of modules."""
    lists = [each for each in trainee.model.modules() if isinstance(each, nn.ModuleList)]
    for block in max(lists, key=len):
        block.compile(backend=backend, dynamic=False)
