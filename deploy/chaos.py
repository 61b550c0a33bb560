"""Kills containers of the compose project and cuts their links, on a schedule that a seed decides.

    faults(seed)  --wait--> kill  SIGKILL, then the container is started again
                            cut   its interface goes down, as if unplugged, then up with the route it had

Which container a fault may strike is its label: `org.lockstep.chaos: "kill cut"`. The schedule
itself knows no containers, only a number that picks one among those in the order of their names, so
it is the same on every machine. Runs beside them with the engine's socket; standard library only.
"""

import contextlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

LABEL = "org.lockstep.chaos"
PROJECT_LABEL = "com.docker.compose.project"
SOCKET = "/engine.sock"

KINDS = ("kill", "cut")

LASTING_S = (2.0, 30.0)
"""Shortest and longest fault: from a hiccup to a lapsed lease (15 seconds unless the run file says
otherwise)."""

ENGINE_TIMEOUT_S = 30.0

# The connected route comes back with the interface, the default one does not.
_CUT = 'route=$(ip route show default) && ip link set eth0 down && sleep "$0"; ip link set eth0 up && ip route add $route'


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong."""

    wait_s: float
    """Since the fault before was over."""
    kind: str
    """"kill" or "cut"."""
    pick: float
    """Share of the way through the sorted containers, in [0, 1)."""
    lasting_s: float


class EngineError(Exception):
    """The engine could not be asked, or refused."""


def faults(seed: int, every_s: float) -> Iterator[Fault]:
    """An endless schedule; waits are exponential with mean `every_s`, so that no fault can be
    waited for.
    """
    draw = random.Random(seed)
    while True:
        yield Fault(
            draw.expovariate(1 / every_s),
            draw.choice(KINDS),
            draw.random(),
            draw.uniform(*LASTING_S),
        )


class Engine:
    """The few questions of the Docker Engine API that are needed, over its unix socket."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def project(self, container: str) -> str:
        """The compose project that a container belongs to."""
        labels: Mapping[str, str] = self._ask("GET", f"/containers/{container}/json")["Config"][
            "Labels"
        ]
        if PROJECT_LABEL not in labels:
            raise EngineError(
                f"expected a container of a compose project, got {container} without {PROJECT_LABEL}"
            )
        return labels[PROJECT_LABEL]

    def targets(self, project: str, kind: str) -> list[str]:
        """Names of the running containers that such a fault may strike, sorted."""
        filters = quote(
            json.dumps({"label": [f"{PROJECT_LABEL}={project}", LABEL], "status": ["running"]})
        )
        found = self._ask("GET", f"/containers/json?filters={filters}")
        return sorted(
            each["Names"][0].lstrip("/") for each in found if kind in each["Labels"][LABEL].split()
        )

    def kill(self, container: str) -> None:
        """SIGKILL; the engine leaves what was killed by its own hand alone."""
        self._ask("POST", f"/containers/{container}/kill?signal=KILL")

    def start(self, container: str) -> None:
        """Starts it again; harmless when it runs."""
        self._ask("POST", f"/containers/{container}/start")

    def cut(self, container: str, lasting_s: float) -> None:
        """Unplugs it; it plugs itself in again, whatever becomes of this process."""
        command = {"Cmd": ["sh", "-c", _CUT, f"{lasting_s:.1f}"], "User": "root"}
        made = self._ask("POST", f"/containers/{container}/exec", command)
        self._ask("POST", f"/exec/{made['Id']}/start", {"Detach": True})

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        connection = _UnixConnection(self._path)
        try:
            headers = {"Content-Type": "application/json"}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            raise EngineError(f"cannot ask the engine at {self._path}: {error}") from error
        finally:
            connection.close()
        if response.status >= 400:
            raise EngineError(
                f"{method} {path}: {response.status} {text.decode(errors='replace').strip()}"
            )
        return json.loads(text) if text.startswith((b"{", b"[")) else None


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=ENGINE_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def strike(engine: Engine, project: str, fault: Fault) -> None:
    """Does one fault, from beginning to end; what the engine refuses is said and passed over."""
    try:
        targets = engine.targets(project, fault.kind)
        if not targets:
            print(f"nothing runs that could be hit by a {fault.kind}", flush=True)
            return
        target = targets[int(fault.pick * len(targets))]
        print(f"{fault.kind} {target} for {fault.lasting_s:.1f} s", flush=True)
        if fault.kind == "kill":
            with _killed(engine, target):
                time.sleep(fault.lasting_s)
        else:
            engine.cut(target, fault.lasting_s)
            time.sleep(fault.lasting_s)
        print(f"{target} is back", flush=True)
    except EngineError as error:
        print(f"{fault.kind} failed: {error}", flush=True)


@contextlib.contextmanager
def _killed(engine: Engine, container: str) -> Iterator[None]:
    """Killed on entry, started on exit, also when this process is told to stop meanwhile."""
    engine.kill(container)
    try:
        yield
    finally:
        engine.start(container)


def main() -> int:
    """Strikes until stopped."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    seed, every_s = (
        int(os.environ["LOCKSTEP_CHAOS_SEED"]),
        float(os.environ["LOCKSTEP_CHAOS_EVERY_S"]),
    )
    engine = Engine()
    try:
        project = engine.project(socket.gethostname())
    except EngineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"chaos in {project}: seed {seed}, a fault every {every_s:g} s", flush=True)
    for number, fault in enumerate(faults(seed, every_s), 1):
        time.sleep(fault.wait_s)
        print(f"fault {number}: ", end="")
        strike(engine, project, fault)
    return 0


if __name__ == "__main__":
    sys.exit(main())
