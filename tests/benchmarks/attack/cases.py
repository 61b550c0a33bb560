"""The cases of the attack study: who attacks, in what number, against which defence, by seed.

The authors make local steps, the default of a run.

    unbounded   no defence: authors state the scales of their movements, and the mean believes them;
                attackers that gain by it say theirs 64 times too large
    reach       no scale is larger than the steps could have moved; those attackers say the largest
    median      the engine as it is: also none far above the median of the round's authors
    audited     the same, and an author against whom the product's auditor finds evidence loses its
                standing, and so does not count: copies, turned signs, other work, less work

A clean case is a run of the honest authors alone, with the shares of the data that they have in the
attacked run. `cases` lists all, the ones that matter most first, so that a study that ends early is
whole as far as it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.benchmarks.attack.payloads import Shadow
from tests.benchmarks.headline.study import cell
from tests.benchmarks.parity.cells import Cell, Task

Attack = Literal[
    "none",
    "leaving",
    "boast",
    "sign flip",
    "random",
    "collusion",
    "copycat",
    "stale",
    "half work",
    "poisoned order",
    "shadow",
    "deep shadow",
]
"""Of these "leaving" attacks nothing: authors that work honestly for the first rounds and are gone
then. It tells what chance does to a run whose attackers are found at once."""
Defence = Literal["unbounded", "reach", "median", "audited"]

ATTACKS: dict[Attack, str] = {
    "boast": "its honest signs with the largest scales that count",
    "sign flip": "the same with every sign turned",
    "random": "random places and signs, with the largest scales",
    "collusion": "one payload of all attackers, made of all their samples, with every sign turned",
    "copycat": "the payload of an honest author of the same round",
    "stale": "works in every tenth round, and repeats that payload in between",
    "half work": "trains the first half of its samples, and says that it trained all",
    "poisoned order": "trains the same samples in every round, not its share",
    "shadow": "turns the signs of the chunks with the largest scales, 55 % of its places in the "
    "first 32 rounds and 22 % then, and says the least scale everywhere else",
    "deep shadow": "the same, with 60 % of its places after the first 32 rounds",
}
"""What an attacker sends."""

BOASTERS: tuple[Attack, ...] = ("boast", "sign flip", "random", "collusion")
"""Attacks with the largest scales that count. The others would be seen by such, or gain nothing."""

FOUND_EARLY: tuple[Attack, ...] = ("sign flip", "collusion", "copycat", "stale")
"""Attacks whose authors an auditor removes in the first rounds."""

SHADOWS: dict[Attack, Shadow] = {"shadow": Shadow(0.55, 0.22), "deep shadow": Shadow(0.55, 0.6)}

AUTHORS = 8
HOSTILE = (2, 3, 1)
"""Attackers among the authors: 1/4, 3/8 and 1/8 of them."""

SEEDS = (0, 1, 2)
ROUNDS, LOCAL_STEPS = 80, 5
TOP_K = 192
RATE = 0.024
"""The headline's best for this network."""

TASK = Task(
    layers=2,
    hidden=64,
    sequence_length=64,
    batch_samples=16,
    point_steps=ROUNDS * LOCAL_STEPS,
)
"""The headline study's network, and two samples of 64 bytes for each author and local step: smaller
than the parity study's, so that the table at a quarter takes an hour of one core."""

PARAMETERS = 115_584
"""Of that network."""

AUDIT_EVERY = 8
"""Rounds from one audit of all authors to the next in clean runs, which only measure."""

DELAY_ROUNDS = 1
"""Rounds that are counted between the one that brings evidence and the first without its author's
vote: the auditor sees a commit while the next round is at work."""

LEAVING_ROUNDS = 2
"""Rounds of the authors that leave."""

STALE_EVERY = 10

AUDIT_BUDGET = 0.02
"""The part of the run's compute that audits may take."""

AIM_NATS = 0.05
"""Aim: nats per byte that a quarter of attackers may cost with all defences."""

PREDICTIONS = """
Without a bound sign flip, random and collusion end more than 1 nat per byte behind, a boast more
than 0.2. With the reach alone collusion ends 0.5 or more behind; beside the median 0.2 to 0.4, and
stale 0.05 to 0.2, the others within 0.05.
Audited, sign flip and collusion have no standing after round 2, a copycat after round 2, stale
after round 5; the others keep theirs for most of the 80 rounds, because 2 % of the compute of eight
authors pays for few audits.
At 1/4 and audited the mean over three seeds is below 0.05 for every attack, and at most 2 of 24
runs end above it, by chance. No honest author loses its standing.
"""
"""Written before these cases were run. Seen before, of seed 0, two of eight: with the reach alone
sign flip 0.73 behind, random 0.12, boast 0.07; beside the median 0.30, 0.04 and 0.08 ahead."""


@dataclass(frozen=True, slots=True)
class Case:
    """One training of the study."""

    attack: Attack
    hostile: int
    """Attackers, the last ones of the authors; in a clean case they are missing."""
    defence: Defence
    seed: int

    @property
    def name(self) -> str:
        """Unique in the study."""
        return f"{self.attack}, {self.hostile} of {AUTHORS}, {self.defence}, seed {self.seed}"

    @property
    def clean(self) -> "Case":
        """The run of the honest authors alone that this one is compared with."""
        return replace(self, attack="none", defence="median")


def cell_of(seed: int, rounds: int = ROUNDS) -> Cell:
    """Local steps of eight authors, and a short schedule."""
    steps = rounds * LOCAL_STEPS
    found = cell("local_steps", RATE, seed, steps, AUTHORS)
    warmup = steps * 2 // 15
    return replace(found, top_k=TOP_K, local_steps=LOCAL_STEPS, warmup_steps=warmup)


def cases() -> Iterator[Case]:
    """All cases in the order of their worth: the aim's share and what chance does, by seed; the
    bounds one by one; the other shares.

    Before an author is removed an audited case is one beside the median alone, so of the latter
    those alone are listed whose attackers are removed early.
    """
    quarter, *others = HOSTILE
    for seed in SEEDS:
        yield Case("none", quarter, "median", seed)
        yield from (Case(attack, quarter, "audited", seed) for attack in ATTACKS)
        yield Case("leaving", quarter, "median", seed)
    for attack in BOASTERS:
        yield Case(attack, quarter, "reach", SEEDS[0])
        yield Case(attack, quarter, "unbounded", SEEDS[0])
    yield from (Case(attack, quarter, "median", SEEDS[0]) for attack in FOUND_EARLY)
    for hostile in others:
        yield Case("none", hostile, "median", SEEDS[0])
        yield from (Case(attack, hostile, "audited", SEEDS[0]) for attack in ATTACKS)
        yield Case("leaving", hostile, "median", SEEDS[0])
