"""`lockstep relay` as its operator meets it: no torch, one clear line, a documented code, and an
end with words.
"""

import os
import signal
import time
from pathlib import Path

import pytest

from lockstep.cli import main
from lockstep.cluster.local import Cluster, ClusterSettings
from lockstep.exit_codes import ExitCode
from lockstep.run_file import write_run_file
from protocol.runfile import RunSpec
from tests.lockstep.test_cli import error_line, without_torch

END_S = 60.0
"""A relay without transfers ends within a second unless the machine is very busy."""


def test_a_relay_needs_no_torch(tmp_path: Path) -> None:
    assert without_torch("relay", "--help").returncode == ExitCode.OK
    done = without_torch(
        "relay", "127.0.0.1:1", "--listen", "127.0.0.1:70000", "--directory", str(tmp_path)
    )
    assert done.returncode == ExitCode.SETTINGS
    assert "expected HOST:PORT" in done.stderr


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--links", "quic"], "expected transports among grpc, libp2p, got quic"),
        (["--peer-limit", "1"], "peer_limit: expected 0 or at least 20000"),
        (["--advertise", "relay.example:port"], "expected HOST:PORT"),
    ],
)
def test_a_wrong_option_is_an_error_of_one_line(
    options: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main(["relay", "127.0.0.1:1", "--directory", str(tmp_path), *options]) == ExitCode.SETTINGS
    )
    assert words in error_line(capsys)


def test_a_relay_drains_on_sigterm_and_ends_with_exit_code_0(tmp_path: Path) -> None:
    write_run_file(tmp_path / "run.toml", RunSpec())
    settings = ClusterSettings(
        tmp_path, tmp_path / "run.toml", tmp_path / "data", nodes=0, relay=True
    )
    with Cluster(settings) as cluster:
        cluster.start()
        (relay,) = cluster.relays
        assert relay.pid is not None
        os.kill(relay.pid, signal.SIGTERM)
        assert relay.wait(time.monotonic() + END_S) == ExitCode.OK
        cluster.watch()
        assert relay.last_words() == "this relay was stopped by its owner"
        assert relay.status["phase"] == "drains: told every node to do without it"
        assert cluster.coordinator.status["relays"] == []
