"""Real ranks, each a process, which the tests of this folder share."""

import sys
from collections.abc import Iterator

import pytest

from node.ranks.crew import Crew
from tests.support.crew import crew_of


@pytest.fixture(scope="package")
def loopback() -> Iterator[None]:
    """What `loopback_only` would set."""
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "GLOO_SOCKET_IFNAME",
            "NCCL_SOCKET_IFNAME",
        ):  # `loopback_only` then lets them be
            patch.setenv(name, "lo" if sys.platform == "linux" else "lo0")
        yield


@pytest.fixture
def alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes are as if no rank were slower than another, however busy the machine is."""
    monkeypatch.setattr("node.ranks.crew.pass_samples", lambda speeds, most: most * len(speeds))


@pytest.fixture(scope="package", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def crew(request: pytest.FixtureRequest, loopback: None) -> Iterator[Crew]:
    with crew_of(request.param) as made:
        yield made
