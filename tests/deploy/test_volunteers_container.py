"""The container of the install guide joins a run, keeps everything in its volume and ends politely:
the guide's own commands, on a CPU.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.run_file import write_run_file
from protocol.runfile import DataSpec
from tests.compose.stack import ROOT, attempt, inspect, no_image, run
from tests.support.tiny import tiny_spec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

CARD = ["--gpus", "all"]
NAME = "lockstep-volunteer-test"
PATIENCE_S = 300.0
"""Longer than anything but the build takes on a machine that others use too."""


def guides(beginning: str) -> list[str]:
    """A command of the install guide, for a machine without a card, with names of its own."""
    text = (ROOT / "docs/guide/install.md").read_text().replace("\\\n", " ")
    line = next(line for line in text.splitlines() if line.startswith(f"docker {beginning}"))
    words = shlex.split(line)
    at = words.index(CARD[0]) if CARD[0] in words else len(words)
    assert beginning != "run --detach" or words[at : at + 2] == CARD
    words = words[:at] + words[at + 2 :]
    if "lockstep" in words:  # the container; inside it is a command of this name
        words[words.index("lockstep")] = NAME
    words = [re.sub(r"^lockstep(?=[\w-]*:/)", NAME, word) for word in words]
    return [word.replace("lockstep-node:cuda", f"{NAME}:image") for word in words]


def build() -> list[str]:
    """The guide's command that builds the image, with this machine's sources of packages."""
    words = guides("build")
    for name in ("BASE_IMAGE", "PIP_INDEX_URL", "PIP_FIND_LINKS", "LOCKED", "TORCH_INDEX"):
        if (value := os.environ.get(f"LOCKSTEP_{name}")) is not None:
            words[2:2] = ["--build-arg", f"{name}={value}"]
    return [
        *words[:2],
        "--network",
        os.environ.get("LOCKSTEP_BUILD_NETWORK", "default"),
        *words[2:],
    ]


def until(condition: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        said = attempt("docker", "logs", "--tail", "20", NAME)
        assert time.monotonic() < deadline_s, f"expected {what}, got {said}"
        time.sleep(0.5)
    return found


@pytest.fixture(scope="module")
def link(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The link of a run whose coordinator works on this machine, beside the containers."""
    if reason := no_image():
        pytest.skip(reason)
    directory = tmp_path_factory.mktemp("run")
    spec = tiny_spec(steps=100_000, members=1)
    spec = spec.model_copy(update={"data": DataSpec(sequence_length=32)})
    write_run_file(directory / "run.toml", spec, force=True)
    places = ["--listen", "0.0.0.0:0", "--admin", "127.0.0.1:0"]
    command = [sys.executable, "-m", "lockstep", "coordinator", "run.toml", "--no-try-model"]
    log = directory / "log"
    with log.open("w") as said:
        running = subprocess.Popen([*command, *places], cwd=directory, stdout=said, stderr=said)
    try:
        yield until(lambda: re.search(r"join '(lockstep://\S+)'", log.read_text()), "a link")[1]
    finally:
        running.terminate()
        running.wait()


@pytest.fixture
def volunteer(link: str) -> Iterator[Callable[[str], str]]:
    """Does what the guide says. Container and volumes are gone afterwards; the image, which takes
    minutes, stays.
    """
    run(*build())
    try:
        yield lambda beginning: run(
            *(link if word == "LINK" else word for word in guides(beginning))
        )
    finally:
        attempt("docker", "rm", "--force", NAME)
        attempt("docker", "volume", "rm", NAME, f"{NAME}-corpora")


def me() -> dict[str, Any]:
    """What `lockstep me` tells in the container; empty while no node is at work."""
    code, said, _ = attempt("docker", "exec", NAME, "lockstep", "me", "--json", "-")
    return dict(json.loads(said)) if not code else {}


def counted() -> dict[str, Any]:
    """The same, once rounds of this session count."""
    status = me()
    return status if status.get("rounds", {}).get("counted", 0) > 1 else {}


def test_a_container_works_ends_politely_and_goes_on_as_the_same(
    volunteer: Callable[[str], str],
) -> None:
    assert "ok    run" in volunteer("run --rm")
    volunteer("run --detach")
    first = until(counted, "rounds that count")
    assert "counted in" in volunteer("exec")
    volunteer("stop")
    assert inspect(NAME)["State"]["ExitCode"] == 0
    assert "left after its round" in "".join(attempt("docker", "logs", NAME)[1:])
    run("docker", "rm", NAME)
    volunteer("run --detach")  # another container with the same volume
    again = until(counted, "rounds that count again")
    assert again["peer_id"] == first["peer_id"]
    assert again["totals"]["run"]["counted"] > again["rounds"]["counted"]
    assert again["round"] > first["round"]
