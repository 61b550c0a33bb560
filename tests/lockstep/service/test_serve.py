"""The shell around a process: notes on disk, the admin port while starting, cleaning up whatever
happens.
"""

import asyncio
import errno
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from lockstep.exit_codes import StoppedError
from lockstep.service.overhead import OverheadMeter
from lockstep.service.serve import NOTE_NAME, STATUS_NAME, ServeOptions, read_note, serve
from lockstep.service.signals import run_event_loop
from lockstep.streams import Stream


class FakeProcess:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls: list[str] = []
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.starting = asyncio.Event()
        self.asked = asyncio.Event()

    async def start(self, connections_max: int) -> None:
        self.calls.append("start")
        self.starting.set()
        await self.may_start.wait()

    async def stop(self) -> None:
        self.calls.append("stop")

    async def work(self) -> str:
        self.calls.append("work")
        await self.asked.wait()
        return "finished"

    def status(self) -> dict[str, object]:
        return {"calls": list(self.calls)}

    def unready(self) -> str:
        return "" if "work" in self.calls else "still starting"


@pytest.fixture
def options(tmp_path: Path) -> ServeOptions:
    return ServeOptions(tmp_path, "127.0.0.1:0")


class FullDisk(io.StringIO):
    """A file that takes nothing."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


def noted(options: ServeOptions) -> dict[str, Any]:
    """The note, which is written before `start` is called."""
    note = read_note(options.directory / NOTE_NAME)
    assert note is not None
    return note


def test_the_note_stands_while_it_runs_and_the_last_status_afterwards(
    options: ServeOptions,
) -> None:
    async def main() -> str:
        process = FakeProcess()

        async def work() -> str:
            note = noted(options)
            assert note["pid"] == os.getpid()
            assert note["coordinator"] == "10.0.0.1:1"
            process.asked.set()
            return await process.work()

        return await serve(
            process, work, process.asked.set, lambda: "10.0.0.1:1", options, meter=OverheadMeter()
        )

    assert run_event_loop(main()) == "finished"
    assert not (options.directory / NOTE_NAME).exists()
    assert json.loads((options.directory / STATUS_NAME).read_text()) == {"calls": ["start", "work"]}


def test_a_process_works_on_while_nobody_can_read_what_it_prints(
    options: ServeOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Stream(FullDisk(), needed=True)
    monkeypatch.setattr("sys.stdout", screen)

    async def main() -> str:
        process = FakeProcess()

        async def work() -> str:
            sys.stdout.write("a table")
            process.asked.set()
            return await process.work()

        return await serve(
            process, work, process.asked.set, lambda: "", options, meter=OverheadMeter()
        )

    assert run_event_loop(main()) == "finished"
    assert screen.needed, "a result that comes afterwards must be written"


def test_while_it_starts_the_admin_port_says_why_it_is_not_ready(options: ServeOptions) -> None:
    async def main() -> tuple[int, str]:
        process = FakeProcess()
        process.may_start.clear()
        serving = asyncio.ensure_future(
            serve(
                process, process.work, process.asked.set, lambda: "", options, meter=OverheadMeter()
            )
        )
        await process.starting.wait()
        note = noted(options)
        assert note["coordinator"] == ""
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{note['admin']}/readyz") as reply,
        ):
            answer = reply.status, await reply.text()
        process.asked.set()
        process.may_start.set()
        await serving
        return answer

    assert run_event_loop(main()) == (503, "still starting\n")


def test_a_signal_before_it_has_started_ends_it_at_once(options: ServeOptions) -> None:
    process: FakeProcess

    async def main() -> None:
        nonlocal process
        process = FakeProcess()
        process.may_start.clear()
        serving = asyncio.ensure_future(
            serve(
                process, process.work, process.asked.set, lambda: "", options, meter=OverheadMeter()
            )
        )
        await process.starting.wait()
        os.kill(os.getpid(), signal.SIGTERM)
        await serving

    with pytest.raises(StoppedError):
        run_event_loop(main())
    assert process.calls == ["start", "stop"]
    assert not (options.directory / NOTE_NAME).exists()


def test_an_error_of_the_process_passes_and_everything_is_closed(options: ServeOptions) -> None:
    process: FakeProcess

    async def broken() -> str:
        raise ZeroDivisionError

    async def main() -> str:
        nonlocal process
        process = FakeProcess()
        return await serve(
            process, broken, process.asked.set, lambda: "", options, meter=OverheadMeter()
        )

    with pytest.raises(ZeroDivisionError):
        run_event_loop(main())
    assert process.calls == ["start", "stop"]
    assert list(options.directory.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"\xff"])
def test_a_torn_note_is_no_note(tmp_path: Path, content: bytes) -> None:
    (tmp_path / NOTE_NAME).write_bytes(content)
    assert read_note(tmp_path / NOTE_NAME) is None
    assert read_note(tmp_path / "missing") is None
