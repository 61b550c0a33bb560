"""The `lockstep` command on a computer of a given speed: training a sample takes at least
`SAMPLE_MS` milliseconds of the environment, most of them asleep, so that nodes of unlike speeds do
not contend for the cores of one machine.
"""

import os
import sys
import time

from node.model.passes import GradientAccumulation

SAMPLE_MS = "THROTTLED_SAMPLE_MS"


def throttle(sample_s: float) -> None:
    """Make every pass from now on last at least this long for each of its samples."""
    unthrottled = GradientAccumulation.next

    def throttled(passes: GradientAccumulation) -> bool:
        began_s, before = time.monotonic(), passes.samples
        made = unthrottled(passes)
        end_s = began_s + sample_s * (passes.samples - before)
        time.sleep(max(0.0, end_s - time.monotonic()))
        return made

    GradientAccumulation.next = throttled  # type: ignore[method-assign]


if __name__ == "__main__":
    from lockstep.__main__ import main

    throttle(int(os.environ[SAMPLE_MS]) / 1000)
    sys.exit(main())
