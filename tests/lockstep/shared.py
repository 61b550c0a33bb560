"""Shared by tests of the front door: ends of processes, a tiny model, tables as printed."""

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from lockstep.cluster.child import Child
from lockstep.exit_codes import ExitCode
from protocol.runfile import RunSpec

END_S = 30.0
"""A process of these tests ends within a second unless the machine is very busy."""

NODE: dict[str, Any] = {
    "phase": "waits for payload e59463a1 of round 1234 from node-0, node-1, node-2",
    "round": 1233,
    "loss": 3.21,
    "state_digest": "e59463a125c7b231",
    "traffic": {
        "payload_up_bytes": 123_456_789,
        "payload_down_bytes": 987_654_321,
        "catch_up_up_bytes": 1,
        "catch_up_down_bytes": 2,
        "control_up_bytes": 3,
        "control_down_bytes": 4,
    },
}
"""A node's status, as far as tables show it."""


def printed(part: Any) -> str:
    """What a table or a text is on a screen of 80 columns."""
    console = Console(width=80, force_terminal=False)
    with console.capture() as capture:
        console.print(part)
    return capture.get()


def tiny_model(spec: RunSpec) -> RunSpec:
    """The same run with a model of which a step takes no time."""
    tiny = {**spec.model.config, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    return spec.model_copy(update={"model": spec.model.model_copy(update={"config": tiny})})


def kill(child: Child) -> None:
    """SIGKILL; returns when the process is gone."""
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)
    child.wait(time.monotonic() + END_S)


def wait_for_end(pid: int) -> None:
    """Waits until a process that need not be our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], END_S)[0], f"process {pid} is still there"
    finally:
        os.close(handle)


def visitor(address: str, directory: Path) -> "subprocess.Popen[str]":
    """A node that has a key of its own and no token, and has begun to join."""
    command = [sys.executable, "-m", "lockstep", "join", address, "--directory", str(directory)]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("LOCKSTEP_")}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=kept, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def require_refused(visitor: "subprocess.Popen[str]") -> None:
    """The visitor ends with the sentence that says what to do."""
    said, _ = visitor.communicate(timeout=END_S)
    assert visitor.returncode == ExitCode.REFUSED, said
    assert "ask its operator for one, then join with --token TOKEN" in " ".join(said.split())
