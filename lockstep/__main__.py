"""The program: `lockstep`, and `python -m lockstep`."""

import os
import signal
import sys

from lockstep import DISTRIBUTION, streams
from lockstep.own_packages import foreign_package

USAGE = 2
"""`ExitCode.USAGE`, which cannot be imported before the packages are known to be ours."""

INTERRUPTED = 130
"""`ExitCode.INTERRUPTED`, for a Ctrl-C that comes while the commands are imported."""


def main() -> int:
    """Runs one command; returns its exit code."""
    streams.install()
    end_on_sigterm_as_process_1()
    code = _run()
    sys.stdout.flush()  # while a full disk can still be told
    return code


def _run() -> int:
    try:
        if foreign := foreign_package():
            advice = f"install {DISTRIBUTION} into a virtual environment of its own"
            print(f"error: {foreign}; {advice}", file=sys.stderr)
            return USAGE
        from lockstep.cli import main as run_command

        return run_command()
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return INTERRUPTED


def end_on_sigterm_as_process_1() -> None:
    """Ends at once on SIGTERM until the command handles signals itself. The kernel drops signals
    without a handler for process 1 of a container, and imports take seconds.
    """
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))


if __name__ == "__main__":
    sys.exit(main())
