"""The coordinator's whole link: it admits, over TLS by the key that it names, and a link with
another key is refused.
"""

import re
from dataclasses import replace

from node.system.tls import ask_certificate
from protocol.border.join_link import JoinLink, parse_link
from tests.compose.say import say
from tests.compose.stack import (
    StackError,
    compose,
    container,
    inspect,
    logs,
    run,
    status,
    try_once,
    wait,
)

ADDRESS = "coordinator:50700"
"""The coordinator as containers call it."""

COORDINATOR_ADMIN = 50701
"""The coordinator's admin port on this machine."""


def whole_link() -> JoinLink:
    """The link that the coordinator prints; `StackError` unless its TLS is by the link's key."""
    found = re.findall(r"lockstep://[^\s']+#[\w-]{43}", logs(container("coordinator")))
    if not found:
        raise StackError("expected the coordinator to print a link with its key, found none")
    link = parse_link(found[-1])
    networks = inspect(container("coordinator"))["NetworkSettings"]["Networks"].values()
    shown = ask_certificate(f"{next(iter(networks))['IPAddress']}:50700", 10.0)
    if shown is None or shown.key != link.key:
        raise StackError(f"expected TLS by the key of {link.text()}, found another or none")
    return replace(link, address=ADDRESS)


def require_refused_link() -> str:
    """A node whose link names another key ends at once, with a sentence that says so."""
    wrong = replace(whole_link(), key=bytes(range(32)))
    code, _, errors = try_once("node-lte", "lockstep", "join", wrong.text())
    said = " ".join(errors.split())
    if not code or "the key that the link names" not in said:
        raise StackError(f"expected a wrong key to be refused, got exit code {code}: {said[-500:]}")
    say(f"a link with another key: exit code {code}")
    return said[said.find("error:") :]


def join_by_link(service: str, members: int) -> float:
    """Seconds until a node that joins by the whole link, in place of the service's own container,
    is a member.
    """
    command = ("--detach", "--no-deps", service, "lockstep", "join", whole_link().text())
    node = compose("run", *command).split()[-1]
    try:
        seconds = wait(
            f"{members} members again",
            lambda: len(status(COORDINATOR_ADMIN).get("members", ())) == members,
        )
    finally:
        run("docker", "stop", node)
        run("docker", "rm", "--force", node)
    say(f"{service} joined by the whole link after {seconds:.1f} s")
    return round(seconds, 1)
