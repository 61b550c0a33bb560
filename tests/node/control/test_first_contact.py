"""Reaching a coordinator: for a while at an address that may be wrong, without a limit at one that
was right.
"""

import asyncio
from pathlib import Path

import pytest

from node.control import first_contact
from node.control.first_contact import is_known, reach, remember
from protocol.errors import UnavailableError, VersionError


class Clock:
    """Time that passes only in pauses, and in calls that wait as long as they may."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        monkeypatch.setattr(first_contact.time, "monotonic", lambda: self.seconds)
        monkeypatch.setattr(first_contact.asyncio, "sleep", self.sleep)

    async def sleep(self, seconds: float) -> None:
        self.seconds += seconds


class Coordinator:
    """Answers after `failures` calls; until then it is silent, or refuses at once."""

    def __init__(self, clock: Clock, failures: int, *, silent: bool = False) -> None:
        self.clock, self.failures, self.silent = clock, failures, silent
        self.calls = 0

    async def call(self, timeout_s: float) -> str:
        self.calls += 1
        if self.calls <= self.failures:
            self.clock.seconds += timeout_s if self.silent else 0
            raise UnavailableError(f"failure {self.calls}")
        return "the run"


async def test_a_cut_in_the_first_call_is_waited_out(monkeypatch: pytest.MonkeyPatch) -> None:
    said = list[str]()
    coordinator = Coordinator(Clock(monkeypatch), 3)
    assert await reach(coordinator.call, said.append, 30) == "the run"
    assert said[0] == "failure 1; asks again in 0.5 s"
    assert len(said) == 3


@pytest.mark.parametrize("silent", [False, True])
async def test_an_address_that_was_never_right_is_given_up_after_its_time(
    monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    clock = Clock(monkeypatch)
    coordinator = Coordinator(clock, 10**6, silent=silent)
    with pytest.raises(UnavailableError, match=f"failure {1 if silent else ''}"):
        await reach(coordinator.call, lambda why: None, 30)
    assert 20 <= clock.seconds <= 30
    assert coordinator.calls == 1 if silent else coordinator.calls > 5


async def test_an_address_that_was_right_is_asked_without_end_at_growing_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    coordinator = Coordinator(clock, 1000)
    assert await reach(coordinator.call, lambda why: None) == "the run"
    assert 2000 < clock.seconds < 5000


async def test_an_error_that_no_wait_mends_is_raised_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)

    async def outdated(timeout_s: float) -> str:
        raise VersionError("update the older one")

    with pytest.raises(VersionError, match="update"):
        await reach(outdated, lambda why: None)
    assert clock.seconds == 0


async def test_a_cancelled_wait_ends() -> None:
    async def nobody(timeout_s: float) -> str:
        raise UnavailableError("nobody")

    waiting = asyncio.create_task(reach(nobody, lambda why: None))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


def test_the_address_that_was_right_is_remembered_and_no_other(tmp_path: Path) -> None:
    directory = tmp_path / "node"
    assert not is_known(directory, "host:1")
    remember(directory, "host:1")
    assert is_known(directory, "host:1")
    assert not is_known(directory, "host:2")
    remember(directory, "host:2")
    assert is_known(directory, "host:2")
