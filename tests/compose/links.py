"""Strangers at the coordinator's door: the whole link names its key, which TLS is by, and a token
lets a new key in.

another key       refused
no token          refused, with the sentence that says what to do
a token           a member whose word does not count; the nodes of the compose file are vouched for
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

STRANGER = "/tmp/stranger"
"""Directory of a node that the run does not know, gone with its container."""

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


def require_vouched(nodes: int) -> dict[str, str]:
    """The standing of each member by its name: all nodes of the compose file are vouched for."""
    standing, rule = _standing(), status(COORDINATOR_ADMIN)["operator"]["admission"]
    if rule != "token" or list(standing.values()) != ["vouched"] * nodes:
        raise StackError(f"expected {nodes} vouched nodes let in by token, got {standing}, {rule}")
    say(f"admitted by {rule}, standing: {standing}")
    return standing


def require_refused_stranger() -> str:
    """A node of a new key without a token ends at once, with a sentence that says what to do."""
    join = ("lockstep", "join", "--directory", STRANGER)
    code, _, errors = try_once("node-lte", *join, whole_link().text())
    said = " ".join(errors.split())
    if not code or "ask its operator for one, then join with --token TOKEN" not in said:
        raise StackError(f"expected a refused stranger, got exit code {code}: {said[-500:]}")
    say(f"a stranger without a token: exit code {code}")
    return said[said.find("error:") :]


def join_as_stranger(service: str) -> float:
    """Seconds until a node of a new key, with the line of a service, is a fresh member by the whole
    link and a token of the operator's.
    """
    create = ("lockstep", "run", "token", "create", "--uses", "1")
    token = compose("exec", "-T", "coordinator", *create).split()[-1]
    link = whole_link().with_token(token).text()
    join = ("lockstep", "join", "--yes", "--directory", STRANGER, "--name", "stranger", link)
    node = compose("run", "--detach", "--no-deps", service, *join).split()[-1]
    try:
        seconds = wait("the stranger to be a member", lambda: "stranger" in _standing())
        if (word := _standing().get("stranger")) != "fresh":
            raise StackError(f"expected the stranger to be fresh, found it {word}")
    finally:
        run("docker", "stop", node)
        run("docker", "rm", "--force", node)
    say(f"a stranger joined by link and token after {seconds:.1f} s, {word}")
    return round(seconds, 1)


def _standing() -> dict[str, str]:
    """The standing of each member, by its name."""
    members = status(COORDINATOR_ADMIN).get("members", ())
    return {member["name"]: member["standing"] for member in members}
