"""Promises of the daemon as a process: errors when it does not start, and its answers."""

import asyncio
import contextlib
import hashlib
import importlib.util
import re
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from node.transports.libp2p import daemon, daemon_control
from node.transports.libp2p.circuit_pb2 import Identify
from node.transports.libp2p.daemon import (
    HIVEMIND,
    Daemon,
    DaemonSettings,
    SocketDirectory,
    find_p2pd,
    trusted_p2pd,
)
from node.transports.libp2p.daemon_control import DaemonClient, receive_caller
from node.transports.libp2p.multiaddr import decode
from node.transports.libp2p.p2pd_pb2 import ErrorResponse, Response
from node.transports.libp2p.varint import sized
from protocol.errors import UnavailableError
from tests.node.transports.libp2p.p2pd import daemon_pid, is_alive, needs_p2pd
from tests.support.waiting import until

CONSTRAINTS = Path(__file__).parents[4] / "constraints.txt"
KEY = Ed25519PrivateKey.from_private_bytes(bytes(32))


@pytest.fixture
def directory() -> Iterator[SocketDirectory]:
    directory = SocketDirectory()
    yield directory
    directory.remove()


def wire(message: Response) -> bytes:
    return sized(message.SerializeToString())


def a_program(path: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a script for the daemon."""
    path.write_text(script)
    path.chmod(0o700)
    monkeypatch.setattr(daemon, "trusted_p2pd", lambda sha256: path)


@needs_p2pd
async def test_a_daemon_answers_has_the_key_and_leaves_nothing(directory: SocketDirectory) -> None:
    settings = DaemonSettings(listen=("/ip4/127.0.0.1/tcp/0",), public=True)
    running = await Daemon.start(KEY, settings, directory)
    try:
        pid = daemon_pid(directory.path)
        assert running.peer == "12D3KooWDpJ7As7BWAwRMfu1VU2WCqNjvq387JEYKDBj4kx6nXTN"
        assert (await running.client.identify())[0] == running.peer
        assert await running.client.contacts() == []
        assert running.addresses[0].startswith("/ip4/127.0.0.1/tcp/")
        assert directory.path.stat().st_mode & 0o777 == 0o700
        assert [file.name for file in directory.path.iterdir()] == ["control.sock"]
    finally:
        await running.stop()
    await running.stop()
    assert not is_alive(pid)
    assert list(directory.path.iterdir()) == []


def test_without_hivemind_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UnavailableError, match="pip install --no-deps hivemind"):
        find_p2pd()


@needs_p2pd
def test_the_daemon_of_the_tested_release_is_trusted() -> None:
    assert trusted_p2pd() == find_p2pd()
    pinned = re.search(r"^hivemind==(.+)$", CONSTRAINTS.read_text(), re.MULTILINE)
    assert pinned
    assert pinned[1] == HIVEMIND


async def test_a_daemon_with_other_bytes_is_not_started_unless_its_digest_is_named(
    tmp_path: Path, directory: SocketDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran, program = tmp_path / "ran", tmp_path / "p2pd"
    program.write_text(f"#!/bin/sh\ntouch {ran}\nexit 3\n")
    program.chmod(0o700)
    monkeypatch.setattr(daemon, "find_p2pd", lambda: program)
    digest = hashlib.sha256(program.read_bytes()).hexdigest()
    with pytest.raises(UnavailableError, match=f"--p2pd-sha256 {digest}"):
        await Daemon.start(KEY, DaemonSettings(), directory)
    assert not ran.exists()
    with pytest.raises(UnavailableError, match="status 3"):
        await Daemon.start(KEY, DaemonSettings(sha256=digest.upper()), directory)
    assert ran.exists()


async def test_a_program_for_another_machine_is_named(
    tmp_path: Path, directory: SocketDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path / "p2pd", "\x7fELF of another machine", monkeypatch)
    with pytest.raises(UnavailableError, match="does not run on this machine"):
        await Daemon.start(KEY, DaemonSettings(), directory)


async def test_a_daemon_that_ends_at_once_is_quoted(
    tmp_path: Path, directory: SocketDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_program(tmp_path / "p2pd", "#!/bin/sh\necho the port is taken >&2\nexit 3\n", monkeypatch)
    with pytest.raises(UnavailableError, match="status 3, last words: the port is taken"):
        await Daemon.start(KEY, DaemonSettings(), directory)


async def test_a_daemon_that_is_never_ready_is_given_up_and_killed(
    tmp_path: Path, directory: SocketDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon, "START_TIMEOUT_S", 0.5)
    monkeypatch.setattr(daemon, "STOP_TIMEOUT_S", 0.1)
    pid = tmp_path / "pid"
    a_program(
        tmp_path / "p2pd",
        f"#!/bin/sh\ntrap '' TERM\necho $$ > {pid}\nwhile :; do sleep 1; done\n",
        monkeypatch,
    )
    with pytest.raises(UnavailableError, match=r"did not start within 0\.5 s"):
        await Daemon.start(KEY, DaemonSettings(), directory)
    assert not is_alive(int(pid.read_text()))


@asynccontextmanager
async def a_daemon_that_says(path: Path, answer: bytes | None) -> AsyncIterator[DaemonClient]:
    """A client of a control socket that gives one answer to everything, or none."""
    open_connections = 0

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal open_connections
        open_connections += 1
        with contextlib.suppress(ConnectionError):
            if answer is not None:
                writer.write(answer)
                writer.write_eof()
            await reader.read()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        open_connections -= 1

    async with await asyncio.start_unix_server(handle, path / "control.sock"):
        yield DaemonClient(path / "control.sock")
        await until(lambda: not open_connections)


OK = Response(type=Response.OK)
ERROR = Response(type=Response.ERROR, error=ErrorResponse(message=b"no route"))
ANSWERS = {
    "an error": (wire(ERROR), "^no route$"),
    "an error that is not UTF-8": (
        wire(Response(type=Response.ERROR, error=ErrorResponse(message=b"no \xff"))),
        "^no \ufffd$",
    ),
    "nothing": (b"", "is gone"),
    "half": (sized(b"12345")[:-1], "is gone"),
    "nonsense": (sized(b"\xff\xff"), "another protocol"),
    "too much": (b"\xff\xff\xff\xff\x7f", "another protocol"),
    "an endless length": (b"\xff" * 20, "another protocol"),
    "something else": (wire(OK), "expected its identity"),
    "half an identity": (sized(b"\x08\x00\x22\x03\x0a\x05x"), "another protocol"),
    "an identity without an id": (sized(b"\x08\x00\x22\x00"), "another protocol"),
}


@pytest.mark.parametrize("kind", ANSWERS)
async def test_any_answer_of_a_daemon_is_understood_or_unavailable(
    directory: SocketDirectory, kind: str
) -> None:
    answer, words = ANSWERS[kind]
    async with a_daemon_that_says(directory.path, answer) as client:
        with pytest.raises(UnavailableError, match=words):
            await client.identify()


async def test_questions_to_a_daemon_that_does_not_answer_time_out(
    directory: SocketDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_control, "ASK_TIMEOUT_S", 0.05)
    async with a_daemon_that_says(directory.path, None) as client:
        for question in (client.identify(), client.contacts(), client.hold()):
            with pytest.raises(UnavailableError, match="did not answer"):
                await question


@needs_p2pd
async def test_a_peer_is_asked_over_a_stream_until_it_is_hung_up_on(
    directory: SocketDirectory,
) -> None:
    settings = DaemonSettings(listen=("/ip4/127.0.0.1/tcp/0",), public=True)
    other = SocketDirectory()
    asked, asking = await Daemon.start(KEY, settings, directory), None
    try:
        asking = await Daemon.start(Ed25519PrivateKey.generate(), settings, other)
        await asking.client.connect(asked.peer, asked.addresses, 5)
        about = Identify.FromString(
            await asking.client.inquire(asked.peer, "/ipfs/id/1.0.0", b"", 5)
        )
        assert decode(about.observed_address).startswith("/ip4/127.0.0.1/tcp/")
        for protocol, words in (
            ("/ipfs/ping/1.0.0", "not within 1 s"),
            ("/no/such/thing", "protocol"),
        ):
            with pytest.raises(UnavailableError, match=words):
                await asking.client.inquire(asked.peer, protocol, b"", 1)
        assert [contact.peer for contact in await asking.client.contacts()] == [asked.peer]
        await asking.client.disconnect(asked.peer)
        assert await asking.client.contacts() == []
    finally:
        for running in filter(None, (asked, asking)):
            await running.stop()
        other.remove()


async def test_a_daemon_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match="is gone"):
        await DaemonClient(tmp_path / "nothing").contacts()


async def test_a_stream_whose_caller_is_not_named_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(daemon_control, "ASK_TIMEOUT_S", 0.05)
    for said in (b"", sized(b"\xff"), sized(b"\x12\x00")):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            theirs.send(said)
            with pytest.raises(UnavailableError):
                await receive_caller(ours)
