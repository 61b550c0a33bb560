"""Another process of this machine, for a test to kill or stop: a test module, run as a program."""

import asyncio
import contextlib
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.waiting import PATIENCE_SECONDS


@asynccontextmanager
async def elsewhere(module: str, *arguments: str) -> AsyncIterator[tuple[Process, str]]:
    """(the process, the address that it prints); it is killed at the end, and its standard input
    held open until then.

    `module`: one whose `__main__` prints where it listens and ends with its standard input.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, stdin=PIPE, stdout=PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            address = (await process.stdout.readline()).decode().strip()
        assert address, "the other process did not start"
        yield process, address
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.stdin.close()
        await process.wait()
