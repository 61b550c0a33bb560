"""Real ranks, each a process, which the tests of this folder share."""

import sys
from collections.abc import Iterator

import pytest

from node.ranks.crew import Crew
from tests.support.crew import crew_of


@pytest.fixture(scope="package", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def crew(request: pytest.FixtureRequest) -> Iterator[Crew]:
    with pytest.MonkeyPatch.context() as patch:
        for name in (
            "GLOO_SOCKET_IFNAME",
            "NCCL_SOCKET_IFNAME",
        ):  # `loopback_only` then lets them be
            patch.setenv(name, "lo" if sys.platform == "linux" else "lo0")
        with crew_of(request.param) as made:
            yield made
