"""The node's entry point, with stand-ins for what needs root."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/entrypoint_node.sh"

SHAPES = 'echo "$0 $*" >> "$TRACE"; sleep 0.2; echo "eth0: shaped by a stand-in"; exec sleep 5'
CANNOT_SHAPE = 'echo "error: this kernel has nothing" >&2; exit 4'
RUNS_THE_REST = (
    'echo "setpriv $*" >> "$TRACE"; while [ "$1" != -- ]; do shift; done; shift; exec "$@"'
)


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def tool(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def start(tools: Path, profile: str) -> tuple[int, str, str, list[str]]:
    """Exit code, both outputs, and what the stand-ins were called with."""
    trace = tools.parent / "trace"
    trace.touch()
    environment = {
        "PATH": f"{tools}:{os.environ['PATH']}",
        "TMPDIR": str(tools.parent),
        "TRACE": str(trace),
        "LOCKSTEP_LINK_PROFILE": profile,
    }
    tool(tools / "setpriv", RUNS_THE_REST)
    tool(tools / "nice", 'shift 2; exec "$@"')
    done = subprocess.run(
        [SCRIPT, "echo", "the command", "runs"],
        env=environment,
        stdout=-1,
        stderr=-1,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout, done.stderr, trace.read_text().splitlines()


def test_the_command_sees_the_interface_only_when_it_is_shaped(tools: Path) -> None:
    tool(tools / "lockstep", SHAPES)
    code, said, _, calls = start(tools, "cable")
    assert code == 0
    assert said.splitlines() == ["eth0: shaped by a stand-in", "the command runs"]
    assert [call.split()[0].rpartition("/")[2] for call in calls] == ["lockstep", "setpriv"]
    assert calls[0].endswith("wan shape eth0")


def test_the_command_runs_as_a_user_that_cannot_regain_rights(tools: Path) -> None:
    tool(tools / "lockstep", SHAPES)
    *_, calls = start(tools, "cable")
    rights = calls[1].partition(" -- ")[0].split()[1:]
    assert set(rights) == {
        "--reuid=lockstep",
        "--regid=lockstep",
        "--clear-groups",
        "--inh-caps=-all",
        "--no-new-privs",
    }


def test_a_link_that_cannot_be_shaped_ends_the_container_with_the_reason(tools: Path) -> None:
    tool(tools / "lockstep", CANNOT_SHAPE)
    code, said, error, calls = start(tools, "cable")
    assert code != 0
    assert error == "error: this kernel has nothing\n"
    assert (said, calls) == ("", [])


def test_without_a_profile_nothing_is_shaped(tools: Path) -> None:
    tool(tools / "lockstep", CANNOT_SHAPE)
    code, said, _, calls = start(tools, "")
    assert (code, said) == (0, "the command runs\n")
    assert len(calls) == 1
