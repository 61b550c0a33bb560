"""What the images and the engine promise together, beyond the training: how containers begin and
end.

kernels         compiled once for a volume, not at each start
a line          that cannot be shaped ends the container, with the reason, before anything trains
first seconds   `docker stop` ends a node that still imports torch, at once
orphans         the container's init reaps them
alone           what starts beside the coordinator ends and leaves nothing
"""

import json
import time
from pathlib import Path
from typing import Any

from tests.compose.say import say
from tests.compose.stack import (
    StackError,
    attempt,
    compose,
    container,
    inspect,
    program,
    run,
    try_once,
    wait,
)

STOP_S = 5.0
"""Longest end of a node that is stopped in its first seconds. The engine's own grace is 150 s."""

STOPPED_CODES = (130, 143)
"""Exit codes of a process that a signal ended: by its handler, and before there was one."""

_COMPILE = """
import json, os, time
from pathlib import Path
from node.exact.cpu_kernels import exact_kernels
if exact_kernels() is None:
    raise SystemExit("expected exact kernels, found none")
place = Path(os.environ["NUMBA_CACHE_DIR"])
files = {str(path): path.stat().st_mtime_ns for path in place.rglob("*") if path.is_file()}
print(json.dumps({"cpu_seconds": round(time.process_time(), 1), "files": files}))
"""
"""Compiles or loads the kernels; prints processor time and the files that keep them."""


def require_kernels_once() -> dict[str, Any]:
    """A second start of a node finds the kernels of the first on the volume, as they were."""
    first, second = (_kernels() for _ in range(2))
    if not first["files"]:
        raise StackError("expected compiled kernels in NUMBA_CACHE_DIR, found no file")
    if second["files"] != first["files"]:
        changed = sorted(dict(second["files"].items() ^ first["files"].items()))
        raise StackError(f"expected the kernels of the first start, found new files: {changed[:4]}")
    seconds = [found["cpu_seconds"] for found in (first, second)]
    say(
        f"kernels: {len(first['files'])} files, processor time {seconds[0]} s at the first start, "
        f"{seconds[1]} s at the second"
    )
    return {"files": len(first["files"]), "cpu_seconds": seconds}


def _kernels() -> dict[str, Any]:
    code, output, errors = try_once("node-cable", "python", "-c", _COMPILE)
    if code:
        raise StackError(f"kernels: exit code {code}: {errors.strip()[-2000:]}")
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def require_refused_line() -> str:
    """A container without the right to shape its line ends with the reason, and runs nothing."""
    code, output, errors = attempt(
        *("docker", "run", "--rm", "--user", "root", "--cap-drop", "ALL"),
        *("--env", "LOCKSTEP_LINK_PROFILE=cable"),
        *("--entrypoint", "/opt/lockstep/deploy/entrypoint_node.sh"),
        *("lockstep-node:local", "echo", "it trains"),
    )
    reason = errors.strip()
    if not code or "it trains" in output or "error:" not in reason:
        raise StackError(
            f"expected a line that cannot be shaped to be an error, got exit code {code}, output "
            f"{output!r}, errors {reason[-500:]!r}"
        )
    say(f"a line that cannot be shaped: exit code {code}, {reason.splitlines()[-1]}")
    return reason.splitlines()[-1]


def require_reaped(service: str) -> float:
    """Seconds until a process whose parent is gone, and which has ended, is no zombie."""
    shell = "sleep 0.1 > /dev/null & echo $!"
    orphan = run("docker", "exec", container(service), "sh", "-c", shell).strip()
    gone = ("docker", "exec", container(service), "test", "!", "-e", f"/proc/{orphan}")
    seconds = wait(f"{service}'s init to reap an orphan", lambda: attempt(*gone)[0] == 0, 0.2)
    say(f"{service}: an orphan is reaped after {seconds:.1f} s")
    return round(seconds, 1)


def require_alone(service: str) -> float:
    """Seconds until nothing but init and the program is in a container: what made the tokens beside
    the coordinator has ended, and is no zombie.
    """
    top = ("docker", "top", container(service), "-eo", "pid,comm")
    seconds = wait(f"{service} to be alone", lambda: len(run(*top).splitlines()[1:]) == 2, 0.2)
    say(f"{service}: alone with its init after {seconds:.1f} s")
    return round(seconds, 1)


def stop_in_first_seconds(service: str) -> dict[str, float]:
    """Seconds that `docker stop` takes when the container has just begun, and while the node
    imports torch.
    """
    moments = {"begun": lambda: True, "importing": lambda: _has_mapped(service, "libtorch")}
    seconds = {}
    for moment, reached in moments.items():
        compose("start", service)
        wait(f"{service} to run", lambda: program(service), 0.05)
        wait(f"{service} to be {moment}", reached, 0.05)
        begin_s = time.monotonic()
        run("docker", "stop", container(service))
        seconds[moment] = round(time.monotonic() - begin_s, 1)
        code = inspect(container(service))["State"]["ExitCode"]
        if seconds[moment] > STOP_S or code not in STOPPED_CODES:
            raise StackError(
                f"{service}: expected to end within {STOP_S:g} s with one of {STOPPED_CODES} when "
                f"stopped while {moment}, got {seconds[moment]} s, exit code {code}"
            )
        say(f"stopped {service} while {moment}: {seconds[moment]} s, exit code {code}")
    return seconds


def _has_mapped(service: str, library: str) -> bool:
    try:
        return library in Path(f"/proc/{program(service)}/maps").read_text()
    except OSError:  # it has ended
        return False
