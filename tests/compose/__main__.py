"""Tries `docker-compose.yml` for real: `make test-compose`, or `python -m tests.compose [--json
PATH]`.

    build -> measure every line, refuse one -> compile kernels once -> up
          -> 20 rounds, equal digests -> standing, metrics, rights, orphans
          -> kill a node -> kill the coordinator -> cut a line -> stop a node in peace
          -> strangers: a wrong link, no token, a token -> stop a node in its first seconds -> down

Exit code 0: all went well; 1, with the reason: a step failed; 2: it cannot be tried here.
"""

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from deploy.chaos import Engine
from lockstep.wan.lab.probe import ProbedLine, measure, udp_socket
from lockstep.wan.link_check import TOLERANCE
from lockstep.wan.profiles import read_profiles
from tests.compose.containers import (
    require_alone,
    require_kernels_once,
    require_reaped,
    require_refused_line,
    stop_in_first_seconds,
)
from tests.compose.links import (
    join_as_stranger,
    require_refused_link,
    require_refused_stranger,
    require_vouched,
)
from tests.compose.say import say
from tests.compose.stack import (
    StackError,
    compose,
    container,
    fetch,
    health,
    inspect,
    logs,
    network_of,
    program,
    restarts,
    rights,
    run,
    status,
    unable,
    wait,
)

ROUNDS = 20
COORDINATOR, RELAY = 50701, 50711
NODES = {"cable": 50721, "dsl": 50722, "starlink": 50723, "lte": 50724}
"""Profiles of the named nodes, and their admin ports."""

ATTEMPTS, PAUSE_S = 10, 3.0
"""To find a line as it was asked for: a busy moment of the machine passes, a wrong line stays
wrong."""

SERVICES = ("coordinator", "relay", *(f"node-{name}" for name in NODES))

SOCKET = "/var/run/docker.sock"
CUT_S = 8.0
"""Shorter than a lease: the member stays, its rounds go on without it or wait for it."""


def build() -> dict[str, Any]:
    """Both images; their sizes, and what we add to the base, in bytes."""
    begin_s = time.monotonic()
    compose("build", "coordinator", "node-cable")
    seconds = round(time.monotonic() - begin_s, 1)
    sizes = {name: image_bytes(f"lockstep-{name}:local") for name in ("coordinator", "node")}
    if "torch" in run(
        "docker", "run", "--rm", "--entrypoint", "ls", "lockstep-coordinator:local", packages()
    ):
        raise StackError("expected a coordinator image without torch, found it there")
    say(
        f"built in {seconds} s: "
        + ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in sizes.items())
    )
    return {"seconds": seconds, "bytes": sizes}


def packages() -> str:
    """Where an image has its packages."""
    program = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return run(
        "docker",
        "run",
        "--rm",
        "--entrypoint",
        "python",
        "lockstep-coordinator:local",
        "-c",
        program,
    ).strip()


def image_bytes(image: str) -> int:
    """Size of an image with its base."""
    return int(json.loads(run("docker", "image", "inspect", image))[0]["Size"])


def measure_lines() -> dict[str, Any]:
    """Every profile's line in a container of its service in which nothing else runs, asked against
    measured.
    """
    far = compose(
        "run", "--detach", "--no-deps", "--entrypoint", "sleep", "coordinator", "900"
    ).split()[-1]
    found: dict[str, Any] = {}
    try:
        for profile in NODES:
            home = compose(
                "run", "--detach", "--no-deps", f"node-{profile}", "sleep", "900"
            ).split()[-1]
            try:
                found[profile] = measured_line(profile, home, far)
            finally:
                run("docker", "rm", "--force", home)
    finally:
        run("docker", "rm", "--force", far)
    return found


def measured_line(profile: str, home: str, far: str) -> dict[str, Any]:
    """One line, measured again when it is off."""
    wait(
        f"{profile} to say that it is shaped",
        lambda: "shaped by" in logs(home),
        0.2,
    )
    said = logs(home).strip()
    link = read_profiles().profile(profile).link()
    assert link.up is not None, "profiles have both ways"
    assert link.down is not None, "profiles have both ways"
    for _ in range(ATTEMPTS):
        result = between(home, far, profile)
        pairs = {
            "up": (link.up.rate_bit_s, result.up_bit_s),
            "down": (link.down.rate_bit_s, result.down_bit_s),
            "rtt": (link.rtt_s, result.rtt_s),
        }
        if not (
            wrong := [
                name for name, (asked, got) in pairs.items() if abs(got - asked) > TOLERANCE * asked
            ]
        ):
            break
        time.sleep(PAUSE_S)
    else:
        raise StackError(
            f"{profile}: {', '.join(wrong)} off by more than {TOLERANCE:.0%}, {pairs}, "
            f"though {said}"
        )
    in_words = ", ".join(f"{name} {asked:.4g} / {got:.4g}" for name, (asked, got) in pairs.items())
    say(f"{profile}: asked / measured, bit/s and s: {in_words}; {said}")
    return {"said": said} | {
        f"{kind}_{name}": pair[i] for name, pair in pairs.items() for i, kind in enumerate(KINDS)
    }


KINDS = ("asked", "measured")


def between(home: str, far: str, profile: str) -> ProbedLine:
    """Measures with a socket in each of two containers' networks."""
    ends = []
    for each in (home, far):
        document = inspect(each)
        address = next(iter(document["NetworkSettings"]["Networks"].values()))["IPAddress"]
        with network_of(int(document["State"]["Pid"])):
            ends.append(udp_socket(address))
    try:
        return measure(ends[0], ends[1], read_profiles().profile(profile).link())
    finally:
        for end in ends:
            end.close()


def committed() -> int:
    """Committed rounds, as the coordinator tells; -1 while it tells nothing."""
    return int(status(COORDINATOR).get("steps", {}).get("committed", -1))


def train(rounds: int) -> dict[str, Any]:
    """Brings everything up and waits for that many rounds with equal digests."""
    begin_s = time.monotonic()
    compose("up", "--detach", "--no-build")
    say(f"up after {time.monotonic() - begin_s:.0f} s")
    wait("four members", lambda: len(status(COORDINATOR).get("members", ())) == len(NODES))
    say(f"four members after {time.monotonic() - begin_s:.0f} s")
    wait(f"{rounds} committed rounds", lambda: committed() >= rounds)
    seconds = round(time.monotonic() - begin_s, 1)
    digests = require_equal(rounds - 1)
    for service in SERVICES:
        wait(f"a healthy {service}", lambda service=service: health(service) == "healthy")  # type: ignore[misc]
    say(f"{committed()} rounds committed after {seconds} s, all healthy, digests equal: {digests}")
    return {"seconds": seconds, "digests": digests}


def require_equal(rounds: int) -> dict[str, Any]:
    """Waits until digests of `rounds` rounds were compared; raises unless all are equal."""
    wait(f"{rounds} compared rounds", lambda: checked()["rounds_checked"] >= rounds)
    digests = checked()
    if not digests["agreed"] or digests["rounds_disputed"]:
        raise StackError(f"expected equal digests, found {digests}")
    return digests


def checked() -> dict[str, Any]:
    """What the coordinator knows of digests."""
    found: dict[str, Any] = status(COORDINATOR).get("digests", {"rounds_checked": -1})
    return found


def scrape() -> dict[str, float]:
    """A number of each process from its metrics."""
    wanted = {
        COORDINATOR: "lockstep_coordinator_rounds_committed_total",
        RELAY: "lockstep_relay_links",
    }
    wanted |= dict.fromkeys(NODES.values(), "lockstep_node_rounds_counted_total")
    found = {}
    for port, name in wanted.items():
        lines = [
            line for line in fetch(port, "/metrics").splitlines() if line.startswith(f"{name} ")
        ]
        if len(lines) != 1:
            raise StackError(
                f"port {port}: expected one line of {name} among its metrics, found {lines}"
            )
        found[f"{port} {name}"] = float(lines[0].split()[1])
    if found[f"{RELAY} lockstep_relay_links"] < 1:
        raise StackError("expected nodes linked to the relay, found none")
    say(f"metrics: {found}")
    return found


def require_harmless() -> dict[str, int]:
    """No process that trains or decides has root's rights or any capability; their users."""
    users = {}
    for service in SERVICES:
        users[service], capabilities = rights(program(service))
        if users[service] == 0 or capabilities:
            raise StackError(
                f"{service}: expected a user without rights, got {users[service]}, "
                f"{capabilities:#x}"
            )
    say("nobody is root, nobody has a capability")
    return users


def kill(service: str) -> dict[str, Any]:
    """SIGKILL of its process, as the kernel short of memory does; the engine starts it again, and
    it takes part.
    """
    before, rounds = restarts(service), committed()
    os.kill(program(service), signal.SIGKILL)
    back_s = wait(
        f"{service} to be started again",
        lambda: restarts(service) > before and running(service),
        0.2,
    )
    well_s = back_s + wait(f"{service} to be healthy", lambda: health(service) == "healthy")
    wait("three more rounds", lambda: committed() >= rounds + 3)
    require_equal(rounds + 2)
    say(
        f"killed {service}: started again after {back_s:.1f} s, healthy after {well_s:.1f} s, "
        "digests equal"
    )
    return {"back_seconds": round(back_s, 1), "healthy_seconds": round(well_s, 1)}


def running(service: str) -> bool:
    """Whether it runs now."""
    return bool(inspect(container(service))["State"]["Running"])


def require_counted_again(profile: str) -> float:
    """Seconds until a node's payloads are in commits again; its line is a line again."""
    before = status(NODES[profile])["rounds"]["counted"]
    seconds = wait(
        f"{profile} to be counted", lambda: status(NODES[profile])["rounds"]["counted"] > before
    )
    said = logs(container(f"node-{profile}")).count("shaped by")
    if said != 2:
        raise StackError(
            f"{profile}: expected its new interface to be shaped too, found it said {said} times"
        )
    say(f"{profile} is counted again, behind its line")
    return round(seconds, 1)


def cut(profile: str) -> float:
    """As chaos does: the interface goes down and comes back; the node goes on. Seconds until it
    answers.
    """
    rounds = committed()
    Engine(SOCKET).cut(container(f"node-{profile}"), CUT_S)
    wait(f"{profile} to be unreachable", lambda: not status(NODES[profile], 2.0), 0.2)
    back_s = wait(f"{profile} to answer", lambda: status(NODES[profile]), 0.5)
    wait("three more rounds", lambda: committed() >= rounds + 3)
    say(
        f"cut {profile} for {CUT_S:g} s: answers again after {back_s:.1f} s; "
        f"digests {require_equal(rounds + 2)}"
    )
    return round(back_s, 1)


def stop(profile: str) -> float:
    """SIGTERM: the node finishes its round, keeps its state and ends with 0."""
    begin_s = time.monotonic()
    compose("stop", f"node-{profile}")
    seconds = round(time.monotonic() - begin_s, 1)
    code = inspect(container(f"node-{profile}"))["State"]["ExitCode"]
    if code:
        last = logs(container(f"node-{profile}"))[-1000:]
        raise StackError(f"{profile}: expected exit code 0 after SIGTERM, got {code}: {last}")
    say(f"stopped {profile} in {seconds} s, exit code 0")
    return seconds


@contextmanager
def taken_down() -> Iterator[None]:
    """Before and after: no containers and no volumes of the project."""
    compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
    try:
        yield
    finally:
        compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
        say("down")


def story(*, lines: bool) -> dict[str, Any]:
    """Everything, in order; what was seen. Without `lines` none is measured."""
    with taken_down():
        return {
            "images": build(),
            "lines": measure_lines() if lines else {},
            "refused_line": require_refused_line(),
            "kernels": require_kernels_once(),
            "training": train(ROUNDS),
            "standing": require_vouched(len(NODES)),
            "metrics": scrape(),
            "rights": require_harmless(),
            "reaped_seconds": require_reaped("node-cable"),
            "alone_seconds": require_alone("coordinator"),
            "node_killed": kill("node-dsl"),
            "counted_again": require_counted_again("dsl"),
            "coordinator_killed": kill("coordinator"),
            "cut": cut("cable"),
            "stop_seconds": stop("lte"),
            "refused_link": require_refused_link(),
            "refused_stranger": require_refused_stranger(),
            "stranger_seconds": join_as_stranger("node-lte"),
            "early_stop_seconds": stop_in_first_seconds("node-lte"),
        }


def main(arguments: Sequence[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.compose", description="Tries docker-compose.yml for real."
    )
    parser.add_argument("--able", action="store_true", help="only say whether it can be tried here")
    parser.add_argument(
        "--no-lines", action="store_true", help="measure no line, where the machine is too busy"
    )
    parser.add_argument("--json", type=Path, help="file for what was seen")
    options = parser.parse_args(arguments)
    if reason := unable():
        print(f"cannot try docker-compose.yml: {reason}")
        return 2
    if options.able:
        return 0
    begin_s = time.monotonic()
    try:
        seen = story(lines=not options.no_lines)
    except (StackError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    say(f"all well in {time.monotonic() - begin_s:.0f} s")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(seen, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
