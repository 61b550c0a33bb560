"""Waiting for a condition, never for a time."""

import asyncio
from collections.abc import Callable

PATIENCE_SECONDS = 120
"""Longer than anything takes on a machine that others use too; a test that waits this long has
failed."""


async def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds; `TimeoutError` when it never does."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while not condition():  # noqa: ASYNC110 (the condition belongs to code that knows nothing of this test)
            await asyncio.sleep(0.01)
