"""The limit of open files, and the connections that fit beside the reserve."""

import subprocess
import sys

import pytest

from lockstep.service.descriptors import CONNECTION_DESCRIPTORS, RESERVE, ConnectionRoom, places
from protocol.limits import CONNECTIONS_MAX

OWN = 64
"""More descriptors than a process at work uses without any peer."""


@pytest.mark.parametrize("limit", [256, 512, 1024, 4096, RESERVE + 3 * CONNECTIONS_MAX])
def test_connections_leave_the_process_what_it_needs(limit: int) -> None:
    room = places(limit)
    assert min(room.peers, room.admin) >= 4
    taken = CONNECTION_DESCRIPTORS * (room.peers + room.page) + room.admin
    assert limit - taken >= min(RESERVE, 3 * OWN)


def test_a_usual_limit_leaves_room_for_hundreds_and_a_tiny_one_for_somebody() -> None:
    assert places(1024).peers > 200
    assert places(4) == ConnectionRoom(1, 1, 1)


STARTED = """
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
refused = {refused}
allowed = resource.setrlimit
def setrlimit(which, limits):
    if limits[0] > refused:
        raise ValueError("not here")
    allowed(which, limits)
resource.setrlimit = setrlimit
from lockstep.service.descriptors import raise_limit
room = raise_limit()
print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], room.peers, room.admin, room.page)
"""


@pytest.mark.parametrize(
    ("soft", "hard", "refused", "least"),
    [(256, 1024, 2000, 1024), (256, 256, 2000, 256), (256, 4000, 1000, 512)],
    ids=["raised", "at its hard limit", "the system takes less than the hard limit"],
)
def test_a_process_raises_its_limit_as_far_as_it_may(
    soft: int, hard: int, refused: int, least: int
) -> None:
    pytest.importorskip("resource")
    program = STARTED.format(soft=soft, hard=hard, refused=refused)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    limit, *room = map(int, done.stdout.split())
    assert least <= limit <= min(hard, refused)
    assert ConnectionRoom(*room) == places(limit)
