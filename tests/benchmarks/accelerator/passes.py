"""A pass in each of its ways: logits whole and by pieces, activations kept and computed again, and
in the end blocks that torch compiles.

The compiler's backend is torch's own on a card; on a CPU, where nodes do not compile, it is
"aot_eager", which compiles nothing and only shows that the way is open.
"""

from collections.abc import Iterator
from pathlib import Path

import torch

from node.model.blocks import CARD_BACKEND, keep_compiled
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
            keep_compiled(directory)
            backend = CARD_BACKEND if device.type == "cuda" else "aot_eager"
            trainee.compile(backend, SAMPLES, length)
            if not trainee.blocks.are_compiled:
                yield {**about, **found, name: "failed: torch cannot compile the blocks"}
                return
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
