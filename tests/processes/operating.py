"""The operator's commands on a cluster's coordinator."""

import subprocess
import sys
from pathlib import Path

from tests.processes.watching import PATIENCE_S


def operate(directory: Path, *words: str) -> str:
    """What a command of `lockstep run` prints."""
    command = [sys.executable, "-m", "lockstep", "run", *words]
    done = subprocess.run(
        [*command, "--directory", str(directory / "coordinator")],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
