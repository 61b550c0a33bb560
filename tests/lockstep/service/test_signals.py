"""Signals: the first is polite, the second is not; a lost parent is a polite one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from lockstep.exit_codes import StoppedError
from lockstep.service.signals import run_event_loop, stopped_like_ctrl_c, until_stopped


def raise_signal(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.fixture(autouse=True)
def started_without_nohup() -> Iterator[None]:
    """Under nohup, which leaves SIGHUP ignored, nobody would hear it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """File descriptor of the other end of standard input."""
    reading, writing = os.pipe()
    with os.fdopen(reading) as stdin:
        monkeypatch.setattr("sys.stdin", stdin)
        yield writing


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_to_leave_and_the_work_ends_as_usual(number: int) -> None:
    async def main() -> str:
        asked = asyncio.Event()

        async def work() -> str:
            raise_signal(number)
            await asked.wait()
            return "round finished"

        return await until_stopped(work(), asked.set)

    assert run_event_loop(main()) == "round finished"


def test_the_second_signal_stops_at_once_and_cleans_up() -> None:
    happened: list[str] = []

    async def work() -> None:
        try:
            raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            happened.append("cleaned up")

    def leave() -> None:
        happened.append("asked")
        raise_signal(signal.SIGINT)

    with pytest.raises(StoppedError):
        run_event_loop(until_stopped(work(), leave))
    assert happened == ["asked", "cleaned up"]


def test_a_closed_terminal_that_is_told_twice_is_no_second_wish() -> None:
    async def main() -> str:
        asked = asyncio.Event()

        async def work() -> str:
            raise_signal(signal.SIGHUP)
            await asked.wait()
            raise_signal(signal.SIGHUP)
            await asyncio.sleep(0.01)
            return "round finished"

        return await until_stopped(work(), asked.set)

    assert run_event_loop(main()) == "round finished"


def test_a_signal_that_is_ignored_stays_ignored_while_work_goes_on() -> None:
    async def work() -> str:
        raise_signal(signal.SIGHUP)
        await asyncio.sleep(0)
        return "done"

    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_event_loop(until_stopped(work(), pytest.fail)) == "done"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_process_1_of_a_container_ends_on_sigterm_during_its_imports() -> None:
    code = (
        "import os, signal, time; os.getpid = lambda: 1\n"
        "import lockstep.__main__ as program; program.end_on_sigterm_as_process_1()\n"
        "print('importing', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline() == b"importing\n"
    child.terminate()
    child.stdout.close()
    assert child.wait() == 143


def test_an_error_of_the_work_is_what_the_caller_sees() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_event_loop(until_stopped(work(), lambda: None))


def test_afterwards_signals_do_what_they_did_before() -> None:
    async def work() -> None:
        await asyncio.sleep(0)

    before = signal.getsignal(signal.SIGTERM)
    run_event_loop(until_stopped(work(), lambda: None))
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_process_whose_parent_is_gone_leaves(parent: int) -> None:
    async def main() -> str:
        asked = asyncio.Event()

        async def work() -> str:
            os.write(parent, b"ignored")
            await asyncio.sleep(0)
            assert not asked.is_set()
            os.close(parent)
            await asked.wait()
            return "left"

        return await until_stopped(work(), asked.set, follow_parent=True)

    assert run_event_loop(main()) == "left"


def test_a_process_that_does_not_follow_its_parent_goes_on(parent: int) -> None:
    async def work() -> str:
        os.close(parent)
        await asyncio.sleep(0)
        return "done"

    assert run_event_loop(until_stopped(work(), pytest.fail)) == "done"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_without_a_loop_a_supervisor_s_signal_ends_the_block_as_ctrl_c_does(number: int) -> None:
    before = signal.getsignal(number)
    ended: list[str] = []

    def work() -> None:
        try:
            raise_signal(number)
        finally:
            raise_signal(number)  # ignored: the block is ending in order
            ended.append("in order")

    with pytest.raises(KeyboardInterrupt), stopped_like_ctrl_c():
        work()
    assert ended == ["in order"]
    assert signal.getsignal(number) is before


def test_a_signal_that_was_ignored_before_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stopped_like_ctrl_c():
            raise_signal(signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, before)
