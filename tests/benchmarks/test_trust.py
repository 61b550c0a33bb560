"""The benchmark of the cost of trust: runs that differ in trust alone, and ratios of pairs."""

import os

import pytest

from tests.benchmarks import trust
from tests.benchmarks.trust import Window


@pytest.mark.parametrize("tiny", [True, False])
def test_the_two_runs_differ_in_trust_alone(tiny: bool) -> None:
    plain, trusted = (trust.spec_of(kind, 3, 1000, 40, tiny=tiny) for kind in trust.KINDS)
    assert (plain.membership.trust, trusted.membership.trust) == ("known", "public")
    same = plain.membership.model_copy(update={"trust": "public"})
    assert plain.model_copy(update={"membership": same}) == trusted


def test_ratios_are_those_of_windows_that_met_the_same_machine() -> None:
    windows = [
        Window("plain", 10, 100, 10, 50),
        Window("trusted", 10, 102, 11, 50),
        Window("plain", 10, 100, 40, 200),  # the machine was busy
        Window("trusted", 10, 102, 44, 220),
    ]
    ratios = trust.summed_up(windows)["trusted_over_plain"]
    assert ratios["bytes_per_node_round"]["median"] == 1.02
    assert ratios["cpu_ms_per_node_round"]["median"] == 1.1
    assert ratios["round_ms"] == {"median": 1.05, "least": 1.0, "most": 1.1}


def test_the_processor_time_of_a_process_grows_with_its_work() -> None:
    before = trust.cpu_ms(os.getpid())
    while trust.cpu_ms(os.getpid()) < before + 20:
        sum(range(100_000))
    assert trust.cpu_ms(os.getpid()) == pytest.approx(before + 20, abs=500)
