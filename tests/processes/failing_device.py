"""`lockstep` on a computer whose graphics card fails in the first pass after each process's first
counted round. Its pauses are short.
"""

import sys
from typing import Any

import torch

from lockstep.volunteer import anew
from node.round import compute
from node.status import NodeStatus

PAUSES_S = (0.2, 0.4)


def fail() -> None:
    """Make a pass raise what torch raises when a device is lost."""
    made = compute._next

    def failing(passes: Any, status: NodeStatus, ended: Any) -> bool:
        if status.work.rounds_counted:
            print("counted before it failed", flush=True)
            raise torch.AcceleratorError(
                "CUDA error: unknown error\nCUDA kernel errors might be asynchronously reported at "
                "some other API call, so the stacktrace below might be incorrect."
            )
        return made(passes, status, ended)

    compute._next = failing
    anew.PAUSES_S = PAUSES_S  # type: ignore[assignment]


if __name__ == "__main__":
    from lockstep.__main__ import main

    fail()
    sys.exit(main())
