"""The program: `lockstep`, and `python -m lockstep`."""

import sys

from lockstep import DISTRIBUTION
from lockstep.own_packages import foreign_package

USAGE = 2
"""`ExitCode.USAGE`, which cannot be imported before the packages are known to be ours."""


def main() -> int:
    """Runs one command; returns its exit code."""
    if foreign := foreign_package():
        advice = f"install {DISTRIBUTION} into a virtual environment of its own"
        print(f"error: {foreign}; {advice}", file=sys.stderr)
        return USAGE
    from lockstep.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
