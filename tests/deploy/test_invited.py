"""The script that waits for a token and gives it to the command of a container."""

import os
import subprocess
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "deploy/invited.sh"


def started(tmp_path: Path, *command: str) -> "subprocess.Popen[str]":
    """The script with a directory of this test in place of the volume."""
    script = tmp_path / SCRIPT.name
    script.write_text(SCRIPT.read_text().replace("/invitation/", f"{tmp_path}/"))
    return subprocess.Popen(
        ["sh", script, "nodes", *command], stdout=subprocess.PIPE, text=True, env=dict(os.environ)
    )


def test_the_command_takes_the_script_s_place_with_the_token(tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("secret")
    with started(tmp_path, "sh", "-c", 'echo "$LOCKSTEP_TOKEN $$ $*"', "sh", "a b") as script:
        said, _ = script.communicate(timeout=60)
    assert said == f"secret {script.pid} a b\n"


def test_without_a_token_it_says_so_waits_and_goes_on_once_it_is_there(tmp_path: Path) -> None:
    with started(tmp_path, "sh", "-c", "echo $LOCKSTEP_TOKEN") as script:
        assert script.stdout is not None
        assert script.stdout.readline().startswith("waiting for the coordinator to make")
        (tmp_path / "new").write_text("secret")
        (tmp_path / "new").rename(tmp_path / "nodes")
        assert script.stdout.readline() == "secret\n"


def test_it_ends_on_sigterm_while_it_waits(tmp_path: Path) -> None:
    with started(tmp_path, "echo", "it trains") as script:
        assert script.stdout is not None
        script.stdout.readline()
        script.terminate()
        assert script.wait(60) == -15
