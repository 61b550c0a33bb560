"""The compose project under test: its commands, its containers, and their processes as the host
sees them.
"""

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PROJECT = "lockstep-test"

STEP_S = 900.0
"""Longest wait for anything: two busy cores build a model, catch up and train a round in far
less."""

_CLONE_NEWNET = 0x40000000


class StackError(Exception):
    """The stack is not what it should be; says what was expected and what was found."""


def unable() -> str:
    """Why this machine cannot try the stack; empty when it can."""
    if os.geteuid() != 0:
        return "it looks into the containers' networks and kills their processes, which needs root"
    if not compose_command():
        return "neither `docker compose` nor docker-compose is here"
    return no_image()


def no_image() -> str:
    """Why this machine cannot build an image; empty when it can."""
    if (
        shutil.which("docker") is None
        or subprocess.run(["docker", "info"], capture_output=True).returncode
    ):
        return "no Docker engine answers here"
    image = base_image()
    known = subprocess.run(["docker", "image", "inspect", image], capture_output=True)
    if (
        known.returncode
        and subprocess.run(["docker", "pull", "--quiet", image], capture_output=True).returncode
    ):
        return (
            f"the engine neither has nor gets the base image {image}; "
            "LOCKSTEP_BASE_IMAGE names another"
        )
    return ""


@cache
def compose_command() -> tuple[str, ...]:
    """The compose of this machine, version 2 where there is one."""
    for command in (("docker", "compose"), ("docker-compose",)):
        with contextlib.suppress(FileNotFoundError):
            if subprocess.run([*command, "version"], capture_output=True).returncode == 0:
                return command
    return ()


def base_image() -> str:
    """What the images are built on."""
    text = (ROOT / "deploy/node.Dockerfile").read_text()
    default = next(line for line in text.splitlines() if line.startswith("ARG BASE_IMAGE="))
    return os.environ.get("LOCKSTEP_BASE_IMAGE") or default.partition("=")[2]


def run(*command: str) -> str:
    """Standard output of a command that must succeed."""
    code, output, errors = attempt(*command)
    if code:
        raise StackError(f"{' '.join(command)}: exit code {code}: {errors.strip()[-2000:]}")
    return output


def attempt(*command: str) -> tuple[int, str, str]:
    """(Exit code, standard output, standard error) of a command that may fail."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def compose(*arguments: str) -> str:
    """One compose command of the project."""
    return run(*compose_command(), "--project-name", PROJECT, *arguments)


def try_once(service: str, *command: str) -> tuple[int, str, str]:
    """(Exit code, output, errors) of a command in a container of a service, without a shaped line
    and without the other services.
    """
    options = ("--rm", "--no-deps", "-T", "-e", "LOCKSTEP_LINK_PROFILE=")
    return attempt(
        *(*compose_command(), "--project-name", PROJECT, "run"), *options, service, *command
    )


def inspect(container: str) -> dict[str, Any]:
    """The engine's document about a container."""
    found: dict[str, Any] = json.loads(run("docker", "inspect", container))[0]
    return found


def container(service: str) -> str:
    """Id of a service's container, running or not."""
    listed = run(
        *("docker", "ps", "--all", "--quiet", "--no-trunc"),
        *("--filter", f"label=com.docker.compose.project={PROJECT}"),
        *("--filter", f"label=com.docker.compose.service={service}"),
        *("--filter", "label=com.docker.compose.oneoff=False"),
    ).split()
    if len(listed) != 1:
        raise StackError(f"{service}: expected one container, found {len(listed)}")
    return listed[0]


def program(service: str) -> int:
    """The host's number of a service's own process, which is the child of the container's init; 0
    while there is none.
    """
    state = inspect(container(service))["State"]
    if not state["Running"]:
        return 0
    listed = run("docker", "top", container(service), "-eo", "pid,ppid").splitlines()[1:]
    pairs = [tuple(map(int, line.split())) for line in listed]
    return min((pid for pid, parent in pairs if parent == int(state["Pid"])), default=0)


def logs(container: str) -> str:
    """Everything that a container has printed."""
    done = subprocess.run(
        ["docker", "logs", container], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    return done.stdout


def health(service: str) -> str:
    """As the engine sees it."""
    return str(inspect(container(service))["State"]["Health"]["Status"])


def restarts(service: str) -> int:
    """How often the engine has started it again."""
    return int(inspect(container(service))["RestartCount"])


def rights(pid: int) -> tuple[int, int]:
    """User and effective capabilities of a process."""
    fields = dict(
        line.split(":", 1)
        for line in Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    return int(fields["Uid"].split()[1]), int(fields["CapEff"], 16)


def fetch(port: int, path: str, timeout_s: float = 10.0) -> str:
    """What an admin port, published on loopback, answers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=timeout_s) as response:
        return str(response.read().decode())


def status(port: int, timeout_s: float = 10.0) -> dict[str, Any]:
    """The status document behind an admin port; empty while there is none."""
    try:
        found: dict[str, Any] = json.loads(fetch(port, "/status.json", timeout_s))
    except OSError:
        return {}
    return found


def wait(what: str, condition: Callable[[], object], every_s: float = 1.0) -> float:
    """Seconds until the condition held; `StackError` with the stack's last words when it never
    did.
    """
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() - begin_s > STEP_S:
            raise StackError(
                f"expected {what} within {STEP_S:.0f} s, still not so:\n"
                f"{compose('logs', '--tail', '8')}"
            )
        time.sleep(every_s)
    return time.monotonic() - begin_s


@contextlib.contextmanager
def network_of(pid: int) -> Iterator[None]:
    """Puts this thread into a container's network: sockets opened within are of that network for
    good.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    with open("/proc/thread-self/ns/net", "rb") as home, open(f"/proc/{pid}/ns/net", "rb") as there:
        _enter(libc, there.fileno())
        try:
            yield
        finally:
            _enter(libc, home.fileno())


def _enter(libc: ctypes.CDLL, descriptor: int) -> None:
    if libc.setns(descriptor, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
