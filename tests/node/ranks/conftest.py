"""Real ranks, each a process, which the tests of this folder share."""

import sys
from collections.abc import Iterator

import pytest

from node.ranks.crew import Crew
from tests.support.crew import crew_of


@pytest.fixture(scope="package", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def crew_and_pids(request: pytest.FixtureRequest) -> Iterator[tuple[Crew, list[int]]]:
    pids = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "GLOO_SOCKET_IFNAME",
            "NCCL_SOCKET_IFNAME",
        ):  # `loopback_only` then lets them be
            patch.setenv(name, "lo" if sys.platform == "linux" else "lo0")
        with crew_of(request.param, pids=pids) as made:
            yield made, pids


@pytest.fixture(scope="package")
def crew(crew_and_pids: tuple[Crew, list[int]]) -> Crew:
    return crew_and_pids[0]


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are as if no rank were slower than another, however busy the machine is."""
    monkeypatch.setattr("node.ranks.crew.pass_samples", lambda speeds, most: most * len(speeds))
