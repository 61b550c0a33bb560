"""`lockstep` on a computer whose graphics card fails in the first pass after each process's first
counted round. Its pauses are short.
"""

import sys
from typing import Any

import torch

from lockstep.volunteer import anew
from node.model.passes import Passes
from node.round import compute
from node.round.context import RoundContext

PAUSES_S = (0.2, 0.4)


def fail() -> None:
    """Make a pass raise what torch raises when a device is lost."""
    made = compute._made

    def fails(passes: Passes, ended: Any) -> bool:
        print("counted before it failed", flush=True)
        raise torch.AcceleratorError(
            "CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported at "
            "some other API call, so the stacktrace below might be incorrect."
        )

    async def makes(context: RoundContext, passes: Passes) -> bool:
        if context.status.work.rounds_counted:
            compute._next = fails
        return await made(context, passes)

    compute._made = makes
    anew.PAUSES_S = PAUSES_S  # type: ignore[assignment]


if __name__ == "__main__":
    from lockstep.__main__ import main

    fail()
    sys.exit(main())
