"""A pass in each of its ways: blocks as they are, and then compiled by torch; logits whole and by
pieces; activations kept and computed again; and a round of passes that are waited for one by one,
or queued.

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
from tests.benchmarks.passes.variants import measured, queued

SAMPLES = 8


def measure(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    """Rows of each way, with the part of the card's peak: blocks as they are, then compiled."""
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
    for name in ("as it is", "compiled"):
        trainee.recompute(False)
        if name == "compiled":
            keep_compiled(directory)
            backend = CARD_BACKEND if device.type == "cuda" else "aot_eager"
            trainee.compile(backend, SAMPLES, length)
            if not trainee.blocks.are_compiled:
                yield {**about, **found, name: "failed: torch cannot compile the blocks"}
                return
        found[name] = {"queue": _beside_peak(sizes, queued(trainee, tokens, sizes.repeats), flops)}
        yield {**about, **found}
        for rows in measured(trainee, tokens, sizes.repeats):
            found[name]["ways"] = _beside_peak(sizes, rows, flops)
            yield {**about, **found}


def _beside_peak(sizes: Sizes, rows: list[Findings], flops: float) -> list[Findings]:
    """Rows with the part of the card's peak."""
    return [{**each, **against_peak(sizes, each["tokens_per_second"], flops)} for each in rows]
