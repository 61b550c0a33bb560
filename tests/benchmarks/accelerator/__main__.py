r"""Everything that is to be measured where a graphics card is at hand.

    python -m tests.benchmarks.accelerator --minutes 8 --json FILE

1. replicas on the CPU and on the device, equal bit for bit, whatever the device rounds upstream;
2. time of a local step, an extraction and an apply, beside Muon and AdamW of torch;
3. tokens a second of a run of one node, and the part of the card's peak;
4. a pass with logits whole and by pieces, activations kept and computed again, blocks compiled or
   not, passes queued or waited for;
5. the device's memory at its peak, beside what volunteers are told;
6. a thousand million parameters within the memory of a home card;
7. two nodes on one card with one on the CPU, in one run.

It asks nothing. FILE is written after each part and within it, so that a cut-off loses nothing; a
part without time is recorded as "not reached", one that fails with its error, and the next begins.
On a machine without a card the same is done on the CPU, small, which tells only that it works.

On a rented machine with torch for CUDA (2.9 or later), transformers and numba that cannot reach a
package index, bring along what such images lack, 16 MB, from the root of the repository:

    pip download -c constraints.txt --only-binary=:all: -d .whl --python-version 3.12 \
        --platform manylinux_2_34_x86_64 --platform manylinux_2_28_x86_64 \
        --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 \
        cachetools cryptography grpcio msgspec protobuf pydantic typer

and there, with its torch as it is:

    python3 -m pip install -q --no-index --no-deps --target /tmp/site .whl/*.whl
    PYTHONPATH=/tmp/site python3 -m tests.benchmarks.accelerator --device cuda --minutes 8 \
        --json "$OUT/accelerator.json"
"""

import argparse
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from lockstep import __version__
from node.system.device import choose_device, describe
from node.system.files import replacing_file
from protocol.errors import SettingsError
from tests.benchmarks.accelerator import equal_bits, large, memory, passes, runs, times
from tests.benchmarks.accelerator.parts import Findings, Part, measured
from tests.benchmarks.accelerator.sizes import sizes_for

PARTS = {
    "equal bits": Part(equal_bits.measure, 5),
    "times": Part(times.measure, 2),
    "one node": Part(runs.measure_one_node, 3),
    "passes": Part(passes.measure, 4),
    "memory": Part(memory.measure, 2),
    "large": Part(large.measure, 3),
    "shared card": Part(runs.measure_shared_card, 2),
}
"""In the order in which they are made."""


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.accelerator",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--minutes", type=float, default=8, help="time of all parts together")
    parser.add_argument("--json", type=Path, required=True, help="file of the results")
    parser.add_argument(
        "--device", default="auto", help="cpu, cuda or cuda:N (default: cuda, else cpu)"
    )
    arguments = parser.parse_args()
    try:
        device = choose_device(arguments.device)
    except SettingsError as error:
        parser.error(str(error))
    about = _about(device)

    def write(found: Mapping[str, Findings]) -> None:
        text = json.dumps({**about, "parts": found}, indent=1) + "\n"
        with replacing_file(arguments.json, len(text)) as temporary:
            temporary.write_text(text, encoding="utf-8")
        print("; ".join(f"{name}: {each['outcome']}" for name, each in found.items()), flush=True)

    measured(PARTS, sizes_for(str(device)), 60 * arguments.minutes, write)


def _about(device: torch.device) -> dict[str, Any]:
    return {
        "lockstep": __version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "device": describe(device),
        "host": describe(torch.device("cpu")),
    }


if __name__ == "__main__":
    main()
