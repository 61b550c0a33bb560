"""The first word with a coordinator names the cause of a failure in seconds."""

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import grpc
import pytest

from lockstep.service import contact
from protocol import wire_pb2 as wire
from protocol.border.join_link import parse_link
from protocol.errors import RemoteProtocolError, UnavailableError, VersionError
from protocol.limits import PROTOCOL_VERSION
from protocol.runfile import RunSpec, run_id, run_json
from protocol.wire_pb2_grpc import CoordinatorServicer, add_CoordinatorServicer_to_server

KEY = b"k" * 32


class Clock:
    """Time that passes only while somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Answering(CoordinatorServicer):
    def __init__(self, run: wire.Run) -> None:
        self.run = run

    def GetRun(self, request: wire.GetRunRequest, context: object) -> wire.Run:  # noqa: N802
        return self.run


def a_run(**changes: object) -> wire.Run:
    spec = RunSpec()
    fields = {
        "protocol_version": PROTOCOL_VERSION,
        "run_id": run_id(spec, KEY),
        "run_json": run_json(spec),
        "coordinator_key": KEY,
    }
    return wire.Run(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def server() -> Iterator[grpc.Server]:
    server = grpc.server(ThreadPoolExecutor(1))
    yield server
    server.stop(None).wait()


def serve(server: grpc.Server, run: wire.Run) -> str:
    add_CoordinatorServicer_to_server(Answering(run), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return f"127.0.0.1:{port}"


@pytest.fixture
def web_server() -> Iterator[str]:
    class Page(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_coordinator_tells_its_run(server: grpc.Server) -> None:
    info = contact.first_word(parse_link(serve(server, a_run())), known=False)
    assert (info.spec, info.coordinator_key) == (RunSpec(), KEY)


def test_a_coordinator_that_is_no_coordinator_of_ours_is_named(server: grpc.Server) -> None:
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with pytest.raises(VersionError, match="found another gRPC server"):
        contact.first_word(parse_link(f"127.0.0.1:{port}"), known=False)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"protocol_version": PROTOCOL_VERSION + 1}, VersionError),
        ({"run_id": "f" * 32}, RemoteProtocolError),
    ],
)
def test_an_answer_that_is_wrong_is_an_error_at_once(
    server: grpc.Server, changes: dict[str, object], kind: type[Exception]
) -> None:
    with pytest.raises(kind):
        contact.first_word(parse_link(serve(server, a_run(**changes))), known=False)


def test_a_web_server_is_named_at_once(web_server: str) -> None:
    with pytest.raises(UnavailableError, match=r"found another server, .* not to its admin port"):
        contact.first_word(parse_link(web_server), known=False)


def test_a_host_that_does_not_exist_is_named_at_once() -> None:
    with pytest.raises(UnavailableError, match=r"no host is called nowhere\.invalid"):
        contact.first_word(parse_link("nowhere.invalid:50700"), known=False)


def test_a_refused_port_is_named_in_the_first_log_line_and_in_the_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    monkeypatch.setattr(contact, "time", clock)
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(UnavailableError, match=r"refuses port 1: .* --listen 0\.0\.0\.0:1"),
    ):
        contact.first_word(parse_link("127.0.0.1:1"), known=False)
    reasons = [str(vars(record).get("reason")) for record in caplog.records]
    assert any("refuses port 1" in reason for reason in reasons)
    assert clock.now_s >= contact.PATIENCE_S, "it is asked again before that"


def test_a_port_that_says_nothing_is_told_from_one_that_refuses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contact, "ANSWER_S", 0.2)
    monkeypatch.setattr(contact, "PATIENCE_S", 0.0)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        with pytest.raises(UnavailableError, match="the port is open"):
            contact.first_word(parse_link(f"127.0.0.1:{silent.getsockname()[1]}"), known=False)


def test_a_coordinator_that_was_right_before_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contact, "PATIENCE_S", 0.0)
    monkeypatch.setattr(contact, "time", Clock())
    answers = iter([UnavailableError("refused"), contact.WrongPartyError("another"), "the run"])

    def ask(_: str) -> object:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(contact, "ask_run", ask)
    assert contact.first_word(parse_link("127.0.0.1:1"), known=True) == "the run"  # type: ignore[comparison-overlap]
