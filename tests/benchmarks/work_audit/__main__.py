"""How well sign agreement tells honest work: `python -m tests.benchmarks.work_audit`.

The parity study's network and text, R authors and doubles of the first that cheat: of DeMo (`demo`)
or, with `--local-steps H`, of rounds of H local steps (`local_steps`). Every `--every` rounds an
auditor computes the work of each author anew and compares. Printed as JSON (`--json PATH`: kept
too): for each kind of payload the shares that agree, by round, their least, median and most, and
the places that the copied payload and two honest ones share.
"""

import json
import tempfile
from pathlib import Path

import torch

from tests.benchmarks.work_audit.options import asked, study_of
from tests.benchmarks.work_audit.results import summed_up


def main() -> None:
    """Measure and print."""
    parser = asked("python -m tests.benchmarks.work_audit", __doc__, 320)
    parser.add_argument("--every", type=int, default=20, help="rounds from one audit to the next")
    parser.add_argument("--late", action="store_true", help="gradients are a round late")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as scratch:
        study = study_of(wanted, Path(scratch), late=wanted.late)
        for number in range(wanted.steps):
            study.step(number, audited=(number + 1) % wanted.every == 0)
    settings = {name: value for name, value in vars(wanted).items() if name != "json"}
    text = json.dumps({"settings": settings, **summed_up(study)}, indent=1)
    if wanted.json:
        wanted.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
