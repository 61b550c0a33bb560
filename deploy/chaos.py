"""Kills containers of the compose project and cuts their links, on a schedule drawn from a seed.

    faults(seed)  --wait--> kill  SIGKILL, then the container is started again
                            cut   its interface goes down, as if unplugged, then up with its route

A container's label says which faults may strike it: `org.lockstep.chaos: "kill cut"`. The schedule
knows no containers, only a number that picks one in the order of their names, so it is the same on
every machine. This program runs in a container with the engine's socket, on the standard library
alone.
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
"""Shortest and longest duration of a fault: from a hiccup to a lapsed lease (15 s by default)."""

ENGINE_TIMEOUT_S = 30.0
"""Longest wait for the engine's answer."""

_CUT = (
    'route=$(ip route show default) && ip link set eth0 down && sleep "$0"; '
    "ip link set eth0 up && ip route add $route"
)
"""Shell command of a cut: the connected route comes back with the interface, the default one does
not."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of one container."""

    wait_s: float
    """Wait after the end of the fault before."""
    kind: str
    """"kill" or "cut"."""
    pick: float
    """Position in the sorted list of containers, as a share in [0, 1)."""
    lasting_s: float


class EngineError(Exception):
    """The engine did not answer, or refused."""


def faults(seed: int, every_s: float) -> Iterator[Fault]:
    """An endless schedule; waits are exponential with mean `every_s`, so that no fault can be
    expected.
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
    """The few requests of the Docker Engine API that are needed, over its unix socket."""

    def __init__(self, path: str = SOCKET) -> None:
        self._path = path

    def project(self, container: str) -> str:
        """Asks for the compose project of a container."""
        labels: Mapping[str, str] = self._ask("GET", f"/containers/{container}/json")["Config"][
            "Labels"
        ]
        if PROJECT_LABEL not in labels:
            raise EngineError(
                f"expected a container of a compose project, got {container} without the label "
                f"{PROJECT_LABEL}"
            )
        return labels[PROJECT_LABEL]

    def targets(self, project: str, kind: str) -> list[str]:
        """Asks for the names of the running containers that such a fault may strike, sorted."""
        filters = quote(
            json.dumps({"label": [f"{PROJECT_LABEL}={project}", LABEL], "status": ["running"]})
        )
        found = self._ask("GET", f"/containers/json?filters={filters}")
        return sorted(
            each["Names"][0].lstrip("/") for each in found if kind in each["Labels"][LABEL].split()
        )

    def kill(self, container: str) -> None:
        """Sends SIGKILL; the engine does not restart a container that it killed itself."""
        self._ask("POST", f"/containers/{container}/kill?signal=KILL")

    def start(self, container: str) -> None:
        """Starts a container; does nothing when it runs."""
        self._ask("POST", f"/containers/{container}/start")

    def cut(self, container: str, lasting_s: float) -> None:
        """Unplugs a container, which plugs itself in again even if this process is gone."""
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
    """Carries out one fault from beginning to end; a refusal of the engine is only printed."""
    try:
        targets = engine.targets(project, fault.kind)
        if not targets:
            print(f"no running container takes a {fault.kind}", flush=True)
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
    """Kills a container and starts it at the end of the block, also if this process must stop."""
    engine.kill(container)
    try:
        yield
    finally:
        engine.start(container)


def main() -> int:
    """Strikes until it is stopped; returns the exit code."""
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
