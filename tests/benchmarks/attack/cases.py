"""The cases of the attack study: who attacks, in what number, against which defence, by seed.

    magnitudes   no defence: coefficients with their magnitudes, averaged over the senders, as DeMo
                 was published; attackers that gain by it say theirs a hundred times larger
    votes        the engine as it is: a value is one bounded vote, whatever the gradients were
    audited      votes, and an author that fails the audit of its work loses its vote

A clean case is a run of the honest authors alone, with the shares of the data that they have in the
attacked run. `cases` lists all, the ones that matter most first, so that a study that ends early is
whole as far as it came.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.benchmarks.parity.cells import DEFAULTS, Cell, Task

Attack = Literal[
    "none", "sign flip", "random", "collusion", "copycat", "stale", "half work", "poisoned order"
]
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

AUTHORS = 8
HOSTILE = (2, 3, 1)
"""Attackers among the authors: 1/4, 3/8 and 1/8 of them."""

SEEDS = (0, 1, 2)
STEPS = 80
RATE = 0.016
"""The rate that was best for the default in the headline study, on the same network."""

TASK = Task(layers=2, hidden=64, sequence_length=64, batch_samples=16, point_steps=STEPS)
"""The headline study's network, and two samples of 64 bytes for each author and round: smaller than
the parity study's, so that the whole table takes an hour of one core."""

PARAMETERS = 115_584
"""Of that network."""

AUDIT_EVERY = 8
"""Rounds from one audit of an author to the next."""

FAILURES_MAX = 2
"""Failed audits after which an author has no vote."""

SIGMAS = 4.0
"""An audit fails below the mean agreement of honest authors, less this many standard deviations,
both from clean runs of other seeds at the same round."""

COPY_SHARE = 0.4
"""Shared places from which on two payloads are looked at as copies; chance gives 0.01."""

BOAST = 100.0
"""How many times too large attackers say their coefficients are, where magnitudes count."""

STALE_EVERY = 10

AUDIT_BUDGET = 0.02
"""The part of a run's compute that audits may take in a real run."""

AIM_NATS = 0.05
"""Aim: nats per byte that a quarter of attackers may cost with all defences."""

PREDICTIONS = """
Without a bound on a vote, sign flip, random places and collusion end more than 1 nat per byte
behind at every share; the others within 0.2.
With bounded votes at 1/4: sign flip 0.10 to 0.30 behind, collusion 0.15 to 0.60, random 0.03 to
0.10, poisoned order 0.02 to 0.10, stale 0.01 to 0.08, copycat and half work below 0.05.
Audited: copycat, stale and collusion lose their votes within two rounds, sign flip, random and
poisoned order at the second audit; all but half work end within 0.05 at 1/4.
Half work is not found in 80 rounds, and costs less than 0.03.
No honest author loses its vote.
"""
"""Written before any case was run."""


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
    """The rule of a run file that says nothing else, for eight authors and a short schedule."""
    warmup = steps * 2 // 15
    return replace(
        DEFAULTS, learning_rate=RATE, steps=steps, warmup_steps=warmup, authors=AUTHORS, seed=seed
    )


def cases() -> Iterator[Case]:
    """All cases in the order of their worth: clean runs, the aim's share, the other shares."""
    quarter, *others = HOSTILE
    for seed in SEEDS:
        yield from (Case("none", hostile, "votes", seed) for hostile in HOSTILE)
    yield from _attacked((quarter,), ("votes", "audited"), SEEDS[0])
    yield from _attacked((quarter,), ("magnitudes",), SEEDS[0])
    yield from _attacked((quarter,), ("votes", "audited"), SEEDS[1])
    yield from _attacked((quarter,), ("votes", "audited"), SEEDS[2])
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
