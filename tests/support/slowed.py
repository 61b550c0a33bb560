"""A process that other work slows down: `python -m tests.support.slowed PID`."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

RUNS_S, RESTS_S = 0.003, 0.009
"""Turns of the slowed process: it has a quarter of its time."""


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Meanwhile a process is stopped three quarters of the time, in short turns, whatever cores the
    machine has.
    """
    stopping = subprocess.Popen([sys.executable, "-m", "tests.support.slowed", str(pid)])
    try:
        yield
    finally:
        stopping.kill()
        stopping.wait()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


if __name__ == "__main__":
    while True:
        os.kill(int(sys.argv[1]), signal.SIGSTOP)
        time.sleep(RESTS_S)
        os.kill(int(sys.argv[1]), signal.SIGCONT)
        time.sleep(RUNS_S)
