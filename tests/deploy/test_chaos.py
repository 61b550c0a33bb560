"""Chaos: the schedule is the seed's, and an engine that is asked does what it says."""

import itertools
import json
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from deploy.chaos import KINDS, LASTING_S, Engine, EngineError, Fault, faults, strike

KILL = Fault(wait_s=0.0, kind="kill", pick=0.99, lasting_s=0.0)
CUT = replace(KILL, kind="cut", pick=0.0)


def first(count: int, seed: int) -> list[Fault]:
    return list(itertools.islice(faults(seed, 60.0), count))


def test_one_seed_is_one_schedule_and_another_seed_another() -> None:
    assert first(50, seed=3) == first(50, seed=3)
    assert first(50, seed=3) != first(50, seed=4)


def test_both_kinds_of_faults_are_drawn_and_each_is_within_its_bounds() -> None:
    drawn = first(200, seed=0)
    assert {fault.kind for fault in drawn} == set(KINDS)
    assert all(
        0 <= fault.pick < 1 and LASTING_S[0] <= fault.lasting_s <= LASTING_S[1] for fault in drawn
    )


def test_faults_come_as_often_as_was_asked() -> None:
    waits_s = [fault.wait_s for fault in itertools.islice(faults(1, 60.0), 2000)]
    assert sum(waits_s) / len(waits_s) == pytest.approx(60, rel=0.1)


class Recorded:
    """An engine of three containers: it answers what it is asked, and remembers."""

    def __init__(self, *, refuses: str = "") -> None:
        self.asked: list[tuple[str, Any]] = []
        self.refuses = refuses

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any]:
        parts = urlsplit(path)
        self.asked.append((f"{method} {parts.path}", body))
        if self.refuses and self.refuses in path:
            return 409, {"message": "is not running"}
        if parts.path == "/containers/json":
            wanted = json.loads(parse_qs(parts.query)["filters"][0])
            assert wanted == {
                "label": ["com.docker.compose.project=home", "org.lockstep.chaos"],
                "status": ["running"],
            }
            labels = {"b": "kill cut", "a": "kill", "c": "kill cut"}
            return 200, [
                {"Names": [f"/{name}"], "Labels": {"org.lockstep.chaos": kinds}}
                for name, kinds in labels.items()
            ]
        if parts.path == "/containers/self/json":
            return 200, {"Config": {"Labels": {"com.docker.compose.project": "home"}}}
        if parts.path == "/containers/alone/json":
            return 200, {"Config": {"Labels": {}}}
        return (201, {"Id": "e1"}) if parts.path.endswith("/exec") else (204, None)


@contextmanager
def served(engine: Recorded, directory: Path) -> Iterator[Engine]:
    """The real client of a recorded engine."""

    class Handler(BaseHTTPRequestHandler):
        def address_string(self) -> str:
            return "a unix socket"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length", 0))
            body = json.loads(self.rfile.read(length)) if length else None
            code, document = engine.answer(self.command, self.path, body)
            self.send_response(code)
            self.end_headers()
            self.wfile.write(b"" if document is None else json.dumps(document).encode())

        do_POST = do_GET

    path = str(directory / "engine.sock")
    with socketserver.UnixStreamServer(path, Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Engine(path)
        finally:
            server.shutdown()
            thread.join()


def test_the_project_is_its_own_container_s(tmp_path: Path) -> None:
    with served(Recorded(), tmp_path) as engine:
        assert engine.project("self") == "home"
        with pytest.raises(
            EngineError, match="expected a container of a compose project, got alone"
        ):
            engine.project("alone")


def test_only_what_a_fault_may_strike_is_a_target_in_the_order_of_names(tmp_path: Path) -> None:
    with served(Recorded(), tmp_path) as engine:
        assert engine.targets("home", "kill") == ["a", "b", "c"]
        assert engine.targets("home", "cut") == ["b", "c"]


def test_a_killed_container_is_started_again(tmp_path: Path) -> None:
    recorded = Recorded()
    with served(recorded, tmp_path) as engine:
        strike(engine, "home", KILL)
    assert [path for path, _ in recorded.asked[1:]] == [
        "POST /containers/c/kill",
        "POST /containers/c/start",
    ]


def test_a_killed_container_is_started_again_when_chaos_is_told_to_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_: float) -> None:
        raise SystemExit

    recorded = Recorded()
    with served(recorded, tmp_path) as engine, monkeypatch.context() as patch:
        patch.setattr("deploy.chaos.time.sleep", stopped)
        with pytest.raises(SystemExit):
            strike(engine, "home", KILL)
    assert recorded.asked[-1][0] == "POST /containers/c/start"


def test_a_cut_container_plugs_itself_in_again(tmp_path: Path) -> None:
    recorded = Recorded()
    with served(recorded, tmp_path) as engine:
        strike(engine, "home", replace(CUT, lasting_s=0.1))
    (made, command), (started, how) = recorded.asked[1:]
    assert (made, started) == ("POST /containers/b/exec", "POST /exec/e1/start")
    assert command["User"] == "root"
    assert command["Cmd"][-1] == "0.1"
    script = command["Cmd"][2]
    assert (
        script.index("eth0 down")
        < script.index("sleep")
        < script.index("eth0 up")
        < script.index("route add")
    )
    assert how == {"Detach": True}


def test_a_refusal_of_the_engine_is_printed_and_the_schedule_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with served(Recorded(refuses="/kill"), tmp_path) as engine:
        strike(engine, "home", KILL)
    assert "409" in capsys.readouterr().out
    strike(Engine(str(tmp_path / "nobody.sock")), "home", KILL)
    assert "cannot ask the engine" in capsys.readouterr().out
