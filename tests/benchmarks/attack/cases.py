"""The cases of the attack study: who attacks, in what number, against which defence, by seed.

The authors train by DeMo as published. What docs/results/data/attack.json keeps was trained by the
former default, whose rule no release has any more.

    magnitudes   no defence: coefficients with their magnitudes, averaged over the senders, as DeMo
                 was published; attackers that gain by it say theirs a hundred times larger
    votes        the engine as it is: a value is one bounded vote, whatever the gradients were
    audited      votes, and an author against whom the product's auditor finds evidence loses its
                 standing, and so its vote: copies, turned signs, other work, less work

A clean case is a run of the honest authors alone, with the shares of the data that they have in the
attacked run. `cases` lists all, the ones that matter most first, so that a study that ends early is
whole as far as it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.benchmarks.parity.cells import PUBLISHED, Cell, Task

Attack = Literal[
    "none",
    "leaving",
    "sign flip",
    "random",
    "collusion",
    "copycat",
    "stale",
    "half work",
    "poisoned order",
]
"""Of these "leaving" attacks nothing: authors that work honestly for the first rounds and are gone
then. It tells what chance does to a run whose attackers are found at once."""
Defence = Literal["magnitudes", "votes", "audited"]

ATTACKS: dict[Attack, str] = {
    "sign flip": "its honest payload with every sign turned",
    "random": "random places and signs",
    "collusion": "one payload of all attackers: the places of their summed momenta, signs turned",
    "copycat": "the payload of an honest author of the same round",
    "stale": "works in every tenth round, and repeats that payload in between",
    "half work": "trains half of its share, and says that it trained all",
    "poisoned order": "trains the same samples in every round, not its share",
}
"""What an attacker sends."""

COSTLY: tuple[Attack, ...] = ("sign flip", "collusion", "stale")
"""The attacks that cost something while nobody is removed, by the first try."""

AUTHORS = 8
HOSTILE = (2, 3, 1)
"""Attackers among the authors: 1/4, 3/8 and 1/8 of them."""

SEEDS = (0, 1, 2)
STEPS = 80
RATE = 0.008
"""The best of 0.001 to 0.016, a factor of two apart, in the clean run of six authors and seed 0:
2.833 nats per byte, where 0.016 ends at the same and 0.004 at 2.855. The kept cases have 0.016,
which was best for the former default on this network."""

TASK = Task(layers=2, hidden=64, sequence_length=64, batch_samples=16, point_steps=STEPS)
"""The headline study's network, and two samples of 64 bytes for each author and round: smaller than
the parity study's, so that the whole table takes an hour of one core."""

PARAMETERS = 115_584
"""Of that network."""

AUDIT_EVERY = 8
"""Rounds from one audit of an author to the next in clean runs, which only measure."""

DELAY_ROUNDS = 1
"""Rounds that are counted between the one that brings evidence and the first without its author's
vote: the auditor sees a commit while the next round is at work."""

LEAVING_ROUNDS = 2
"""Rounds of the authors that leave."""

BOAST = 100.0
"""How many times too large attackers say their coefficients are, where magnitudes count."""

STALE_EVERY = 10

AUDIT_BUDGET = 0.02
"""The part of the run's compute that audits may take."""

AIM_NATS = 0.05
"""Aim: nats per byte that a quarter of attackers may cost with all defences."""

PREDICTIONS = """
Sign flip and collusion are named by the comparison of payloads in the first round, audited at once,
and have no vote after round 2. Stale is found as a copy of itself in rounds 2, 3 and 4, and has no
vote after round 5. Copycat is named in the first round, and its audits prove nothing; copycat,
random, half work and poisoned order keep their votes for most of the 80 rounds.
At 1/4 the mean over three seeds is below 0.05 for every attack. A single run may end above it by
chance, whose standard deviation is 0.05: at most 3 of 21, and authors that leave after two honest
rounds do so as often.
No honest author loses its vote, and no audit of one comes below 0.6.
"""
"""Of the second try, with the product's rules and the former default; written before any case of it
was run."""

FIRST_PREDICTIONS = """
Without a bound on a vote, sign flip, random places and collusion end more than 1 nat per byte
behind at every share; the others within 0.2.
With bounded votes at 1/4: sign flip 0.10 to 0.30 behind, collusion 0.15 to 0.60, random 0.03 to
0.10, poisoned order 0.02 to 0.10, stale 0.01 to 0.08, copycat and half work below 0.05.
Audited: copycat, stale and collusion lose their votes within two rounds, sign flip, random and
poisoned order at the second audit; all but half work end within 0.05 at 1/4.
Half work is not found in 80 rounds, and costs less than 0.03.
No honest author loses its vote.
"""
"""Of the first try, whose audits were a model; written before any case was run."""


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
        """The run of the honest authors alone that this one is compared with. Nobody is removed
        from it, so audits change nothing.
        """
        defence: Defence = "magnitudes" if self.defence == "magnitudes" else "votes"
        return replace(self, attack="none", defence=defence)


def cell_of(seed: int, steps: int = STEPS) -> Cell:
    """DeMo as published, for eight authors and a short schedule."""
    warmup = steps * 2 // 15
    return replace(
        PUBLISHED, learning_rate=RATE, steps=steps, warmup_steps=warmup, authors=AUTHORS, seed=seed
    )


def cases() -> Iterator[Case]:
    """All cases in the order of their worth: clean runs, the aim's share, the other shares; some
    twice.
    """
    quarter, *others = HOSTILE
    for seed in SEEDS:
        yield from (Case("none", hostile, "votes", seed) for hostile in HOSTILE)
    for seed in SEEDS:
        yield from (Case(attack, quarter, "audited", seed) for attack in COSTLY)
    yield from (Case("leaving", quarter, "votes", seed) for seed in SEEDS)
    for seed in SEEDS:
        yield from _attacked((quarter,), ("votes", "audited"), seed)
    yield from (Case(attack, 3, "audited", SEEDS[0]) for attack in COSTLY)
    yield from (Case("leaving", hostile, "votes", seed) for hostile in others for seed in SEEDS)
    yield from _attacked((quarter,), ("magnitudes",), SEEDS[0])
    yield from _attacked(others, ("votes", "audited"), SEEDS[0])
    yield from _attacked(others, ("magnitudes",), SEEDS[0])
    yield from _attacked(others, ("votes", "audited"), SEEDS[1])
    yield from _attacked(others, ("votes", "audited"), SEEDS[2])
    for seed in SEEDS[1:]:
        yield from _attacked(HOSTILE, ("magnitudes",), seed)


def _attacked(
    hostile: tuple[int, ...] | list[int], defences: tuple[Defence, ...], seed: int
) -> Iterator[Case]:
    for count in hostile:
        if "magnitudes" in defences:
            yield Case("none", count, "magnitudes", seed)
        for attack in ATTACKS:
            yield from (Case(attack, count, defence, seed) for defence in defences)
