"""A third of the members with standing is unwilling: the others lose little, and learn of whom."""

import pytest

from tests.simulation.unwilling import CONDUCTS, Unwilling, quiet
from tests.support.draw import Draw

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEPT = 0.85
"""Samples of the willing members that must be counted, of those in the quiet run."""

SEEDS = 200
NAMED = {
    "withholds": "nobody could get",
    "late": "came long after",
    "drops": "links to it break again and again",
    "greedy": "takes the same payloads again and again",
    "nibbles": "takes the same payloads again and again",
    "mute": "does not say which payloads it holds",
}
"""What the status says of each conduct in rounds that end early."""


def play(seed: int, conduct: str, *, full: bool) -> list[str]:
    """One run of three or six, in which the others lose little, and nothing is said of one of whom
    the quiet run says nothing; what is said of the unwilling. A machine four times slower than both
    others comes long after them in the quiet run too.
    """
    members = 3 if seed % 2 else 6
    run, usual = Unwilling(seed, conduct, full=full, members=members), quiet(seed, full, members)
    work = run.work()
    part = work.samples / usual.samples
    assert part >= KEPT, (seed, part)
    both = zip(work.remarks, usual.remarks, strict=True)
    assert not [said for said, before in both if said and not before], (seed, work.remarks)
    return run.remarks(run.unwilling)


@pytest.mark.parametrize("conduct", CONDUCTS)
def test_rounds_that_last_to_the_bell_lose_nothing_to_unwilling_members(
    conduct: str, draw: Draw, request: pytest.FixtureRequest
) -> None:
    (seed,) = draw.seeds(request.node.name, 1, SEEDS)
    play(seed, conduct, full=True)


@pytest.mark.parametrize("conduct", CONDUCTS)
def test_rounds_that_end_when_all_are_there_wait_for_no_unwilling_member(
    conduct: str, draw: Draw, request: pytest.FixtureRequest
) -> None:
    (seed,) = draw.seeds(request.node.name, 1, SEEDS)
    remarks = play(seed, conduct, full=False)
    assert all(NAMED.get(conduct, "") in each for each in remarks), (seed, remarks)
