"""How far honest payloads are alike: `python -m tests.benchmarks.copies`.

The parity study's network and text, and honest authors of DeMo as published or, with
`--local-steps H`, of rounds of H local steps (`tests.benchmarks.work_audit`). Of each round every
pair of payloads of that round, and every pair of one of them and one of the last rounds, is
compared whole (`lockstep.audit.copies.likeness`), and each author's signs with those of the others
of its round. Every `--young` rounds all authors begin again without momentum, at the same time.
Printed as JSON (`--json PATH`: added to a list there): number, median, 999 and 9999 of ten
thousand, and most, before and from round `EARLY_ROUNDS` on.
"""

import json
import tempfile
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from lockstep.audit.copies.likeness import Sent as Committed
from lockstep.audit.copies.likeness import (
    Sketch,
    drawn_chunks,
    likeness,
    part_of,
    sketch_of,
    turned,
)
from protocol.audit.rule import EARLY_ROUNDS
from protocol.codec.payload import Coefficients
from protocol.ids import PeerId, sha256
from tests.benchmarks.work_audit.options import asked, study_of

ROUNDS_BACK = 4
"""Earlier rounds that each is compared with."""

Sent = Sequence[Coefficients]


def compared(sent: Sent, earlier: Sequence[Sent]) -> Iterator[tuple[str, float]]:
    """The pairs of a round's payloads, and of them and those of earlier rounds, the newest last."""
    for one, other in combinations(sent, 2):
        yield "of one round", likeness(one, other)
    for age, before in enumerate(reversed(earlier), 1):
        when = "the round before" if age == 1 else "rounds before"
        for author, one in enumerate(sent):
            for place, other in enumerate(before):
                whose = "its own" if place == author else "another's"
                yield f"{whose} of {when}", likeness(one, other)


def sketches(sent: Sent) -> list[Sketch]:
    """Of a round's payloads, as an auditor has them."""
    chunks = drawn_chunks(0, len(sent[0].counts))
    names = [PeerId(f"{author:032x}") for author in range(len(sent))]
    return [
        sketch_of(Committed(0, name, sha256(name.encode())), part_of(each, chunks))
        for name, each in zip(names, sent, strict=True)
    ]


def spread(found: Sequence[float]) -> Mapping[str, float]:
    """What is told of some likenesses."""
    at = np.quantile(found, (0.5, 0.999, 0.9999, 1))
    names = ("median", "999 of 1000", "9999 of 10000", "most")
    return {"pairs": len(found)} | dict(zip(names, at.round(4).tolist(), strict=True))


def main() -> None:
    """Measure and print."""
    parser = asked("python -m tests.benchmarks.copies", __doc__, 400)
    parser.add_argument("--young", type=int, default=0, help="life of all momenta; 0: no end")
    wanted = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, list[float]]] = {"early": defaultdict(list)}
    found["later"] = defaultdict(list)
    with tempfile.TemporaryDirectory() as scratch:
        study = study_of(wanted, Path(scratch))
        earlier: deque[Sent] = deque(maxlen=ROUNDS_BACK)
        for number in range(wanted.steps):
            if wanted.young and number % wanted.young == 0:
                study.begin_again()
            sent = study.honest_step(number)
            when = found["early" if number < EARLY_ROUNDS else "later"]
            for kind, value in compared(sent, earlier):
                when[kind].append(value)
            shares = turned(sketches(sent)).values()
            when["turned against the others"].extend(share for share, _ in shares)
            earlier.append(sent)
    document = {
        "settings": {name: value for name, value in vars(wanted).items() if name != "json"},
        **{
            when: {kind: spread(values) for kind, values in kinds.items()}
            for when, kinds in found.items()
        },
    }
    if wanted.json:
        kept = json.loads(wanted.json.read_text()) if wanted.json.exists() else []
        wanted.json.write_text(json.dumps([*kept, document], indent=1) + "\n")
    print(json.dumps(document, indent=1))


if __name__ == "__main__":
    main()
