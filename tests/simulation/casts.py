"""One seed, one cast: a public run whose hostile members are of random kinds, in random number.

Half of the casts have strangers without standing, up to three for each honest member; the others
have hostile members with standing, up to a third of all that have it. Some runs have an auditor
that the operator has named, and some an operator at work whose coordinator is killed three times.
"""

import random
from collections import Counter

from tests.simulation.checkers import Violation
from tests.simulation.hostile import KINDS
from tests.simulation.strangers import COMMITS_PERCENT, Cast, Strangers, played
from tests.simulation.verdicts import Verdict

HONEST = (3, 4, 4, 6)
"""Honest members, all of them vouched for."""

FRESH_EACH = 3
"""Strangers without standing for each honest member, at most."""

AUDITED, OPERATED = 0.25, 0.15
"""Shares of the casts with a named auditor, and with an operator at work."""

OPERATED_PERCENT, OUTAGES_PERCENT = 80, 40
"""Commits of the quiet run that must be made where the coordinator is killed, among strangers
without standing and among those with it: rounds that open while honest members are still away are
lost."""


def cast_of(seed: int) -> Cast:
    """The members of a seed's run."""
    chance = random.Random(f"cast of {seed}")
    honest, vouched = chance.choice(HONEST), chance.random() < 0.5
    most = honest // 2 if vouched else FRESH_EACH * honest
    operated = chance.random() < OPERATED
    percent = OUTAGES_PERCENT if vouched else OPERATED_PERCENT
    return Cast(
        seed,
        honest,
        chance.randint(1, most),
        chance.choice([*KINDS, "mixed"]),
        vouched=vouched,
        audited=chance.random() < AUDITED,
        operated=operated,
        commits_percent=percent if operated else COMMITS_PERCENT,
    )


def judge(seed: int) -> Verdict:
    """Run one seed. Its hostile members are counted as its faults."""
    cast = cast_of(seed)
    try:
        among = played(cast)
    except Violation as violation:
        return Verdict(seed, f"seed {seed}: {violation}")
    return verdict_on(among, Counter(member.kind for member in among.hostile))


def verdict_on(among: Strangers, faults: Counter[str]) -> Verdict:
    """The verdict on a run that has kept its promises."""
    cast, rounds = among.cast, len(among.coordinator.referee.words)
    return Verdict(
        cast.seed,
        "",
        cast.honest,
        rounds,
        len(among.coordinator.referee.commits),
        cast.honest * rounds,
        among.coordinator.restarts,
        faults,
        among.world.fingerprint(),
    )
