"""Questions to a process of the same machine, over a socket in its directory."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lockstep.service.local_socket import LocalSocket, ask
from protocol.errors import UnavailableError


class Question(msgspec.Struct):
    text: str = "?"


async def test_a_process_that_ends_before_it_answers_says_so_and_is_no_bug(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked = asyncio.Event()
    waits: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def answer(_: bytes) -> dict[str, Any]:
        asked.set()
        return await waits

    path = tmp_path / "control"
    served = LocalSocket(path, answer)
    await served.start()
    asking = asyncio.create_task(asyncio.to_thread(ask, path, Question(), "no node", "start it"))
    await asked.wait()
    with caplog.at_level(logging.ERROR):
        waits.cancel()  # what happens to whoever waits for a journal that has failed
        with pytest.raises(UnavailableError, match="ended before it answered"):
            await asking
    await served.stop()
    assert not caplog.records
