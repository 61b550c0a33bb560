"""The first word with a coordinator, before torch is imported: which run it keeps, or why nobody
answers.

    no host of that name, another program listens     wrong address: an error at once
    refused, silent                                   it may start: an error after `PATIENCE_S`
    ... at an address that was right before           it is away: asked again without a limit
"""

import logging
import os
import queue
import select
import socket
import sys
import time
from collections.abc import Callable

import grpc
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.exit_codes import StoppedError
from node.control.calls import PAUSE_MS
from node.control.channel import clean_reason
from node.control.described_run import checked_run
from node.control.hello import prove, refusal
from node.system.backoff import Backoff
from node.system.tls import CHANNEL_OPTIONS, Shown, ask_certificate, judged
from protocol import wire_pb2 as wire
from protocol.addresses import DEFAULT_PORT, split_address
from protocol.border.join_link import JoinLink
from protocol.channel import CLIENT_OPTIONS
from protocol.errors import RemoteProtocolError, UnavailableError, VersionError
from protocol.run_info import RunInfo
from protocol.wire_pb2_grpc import CoordinatorStub

log = logging.getLogger("lockstep.join")

CONNECT_S = 5.0
"""Longest wait for a TCP connection: a far host over a bad link takes a second or two."""

ANSWER_S = 10.0
"""Longest wait for the run file over an open connection."""

PATIENCE_S = 10.0
"""Longest wait for a coordinator that is starting, at an address that was never right."""

CONTACT_PAUSE_MS = PAUSE_MS

_OTHER_SERVERS = ("http1", "HTTP/1", "Failed parsing HTTP/2")
"""Parts of gRPC's words for an answer that is no gRPC."""

_SAY_AGAIN_S = 30.0
"""Pause between two log lines while a coordinator is away."""


class WrongPartyError(UnavailableError):
    """Another program than a coordinator answers at the address, or no such host exists: waiting
    does not mend it.
    """


def first_word(link: JoinLink, *, known: bool, follow_parent: bool = False) -> RunInfo:
    """The run of the coordinator that a link names.

    Asks again for `PATIENCE_S`, or without a limit at an address that is `known` to be right.
    Raises `UnavailableError`, `VersionError`, `SettingsError`; `StoppedError` when the parent that
    it follows is gone.
    """
    pauses = Backoff(*CONTACT_PAUSE_MS)
    deadline_s, say_s = time.monotonic() + PATIENCE_S, 0.0
    while True:
        try:
            return ask_run(link)
        except WrongPartyError:
            if not known:
                raise
            reason = "another program answers at the coordinator's address, or its name is gone"
        except UnavailableError as error:
            reason = str(error)
            if not known and time.monotonic() >= deadline_s:
                raise
        if time.monotonic() >= say_s:
            limit = "until it answers" if known else f"for {PATIENCE_S:.0f} s"
            log.info("no answer yet", extra={"reason": reason, "asks_again": limit})
            say_s = time.monotonic() + _SAY_AGAIN_S
        _pause(pauses.next() / 1000, follow_parent)


def open_channel(link: JoinLink, timeout_s: float) -> grpc.Channel:
    """A channel to the coordinator that a link names, with TLS if it has it.

    Raises `UnavailableError` when nobody answers, `RemoteProtocolError` when it has no TLS where
    it is needed, or another key than the link names.
    """
    return _open(link, judged(link, ask_certificate(link.address, timeout_s)))


def _open(link: JoinLink, shown: Shown | None) -> grpc.Channel:
    if shown is None:
        return grpc.insecure_channel(link.address, options=CLIENT_OPTIONS)
    return grpc.secure_channel(
        link.address, shown.credentials, options=(*CLIENT_OPTIONS, *CHANNEL_OPTIONS)
    )


def knock(link: JoinLink, info: RunInfo, key: Ed25519PrivateKey) -> wire.CoordinatorMessage:
    """What the coordinator would say first to a node with this key, which does not join yet: that
    the run has `finished`, that it has to wait (`refused`), or an empty message where it may come,
    or where there is no answer now: the node asks again when it joins.

    Raises `RefusedError` or `DivergedError` when it may not come.
    """
    outbox: queue.SimpleQueue[wire.NodeMessage | None] = queue.SimpleQueue()
    message: wire.CoordinatorMessage
    try:
        shown = judged(link, ask_certificate(link.address, ANSWER_S))
        with _open(link, shown) as channel:
            call = CoordinatorStub(channel).Session(iter(outbox.get, None), timeout=ANSWER_S)
            for message in call:
                clean_reason(message)
                match message.WhichOneof("kind"):
                    case "challenge":
                        hello = wire.Hello(only_asks=True)
                        hello.token = link.token_over(secure=shown is not None)
                        signed = prove(hello, key, info.run_id, message.challenge.nonce)
                        outbox.put(wire.NodeMessage(hello=signed))
                    case "refused" if not message.refused.retry:
                        raise refusal(message.refused)
                    case _:
                        call.cancel()
                        return message
    except (UnavailableError, RemoteProtocolError, grpc.RpcError) as error:
        log.debug("no answer at the door", extra={"reason": str(error)})
    finally:
        outbox.put(None)  # else gRPC's thread waits for another message
    return wire.CoordinatorMessage()


def ask_run(link: JoinLink) -> RunInfo:
    """The run of the coordinator that a link names, asked once; errors as in `first_word`."""
    address = link.address
    connect(address)
    try:
        opened = open_channel(link, ANSWER_S)
    except UnavailableError:
        raise _silent(address) from None
    with opened as channel:
        try:
            run = CoordinatorStub(channel).GetRun(wire.GetRunRequest(), timeout=ANSWER_S)
        except grpc.RpcError as error:
            raise translated(error, address) from None
    info = checked_run(run, address)
    link.check(info.run_id, info.coordinator_key, None)  # TLS was judged with the channel
    return info


def connect(address: str, opened: Callable[[float], None] = lambda _: None) -> None:
    """Opens and closes a TCP connection; `opened` is told how long it took, in seconds.

    Raises `UnavailableError` with the cause in words.
    """
    host, port = split_address(address)
    began_s = time.monotonic()
    try:
        with socket.create_connection((host, port), timeout=CONNECT_S):
            opened(time.monotonic() - began_s)
    except socket.gaierror:
        raise WrongPartyError(
            f"cannot reach a coordinator at {address}: no host is called {host}; check its "
            "spelling, and that this machine has a network"
        ) from None
    except ConnectionRefusedError:
        raise UnavailableError(
            f"cannot reach a coordinator at {address}: {host} is there, but refuses port {port}: "
            "the coordinator does not run, listens on another port, or only for its own machine "
            f"(its operator starts it with --listen 0.0.0.0:{port})"
        ) from None
    except TimeoutError:
        raise UnavailableError(
            f"cannot reach a coordinator at {address}: nothing answers within {CONNECT_S:g} s: the "
            f"machine is off, or a firewall drops port {port}"
        ) from None
    except OSError as error:
        raise UnavailableError(
            f"cannot reach a coordinator at {address}: {error.strerror or error}; check the "
            "network of this machine"
        ) from None


def translated(error: grpc.RpcError, address: str) -> UnavailableError | VersionError:
    """The error of a call to a coordinator, in words that name the cause."""
    details = error.details() or error.code().name.lower()
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return VersionError(
            f"expected a coordinator of lockstep.v1 at {address}, found another gRPC server"
        )
    if any(words in details for words in _OTHER_SERVERS):
        return WrongPartyError(
            f"expected a coordinator at {address}, found another server, such as a web page; "
            f"nodes connect to the coordinator's port, {DEFAULT_PORT} unless it was changed, "
            "not to its admin port"
        )
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        return _silent(address)
    return UnavailableError(
        f"cannot reach a coordinator at {address}: the port is open, but the answer is none of a "
        f"coordinator ({details})"
    )


def _silent(address: str) -> UnavailableError:
    return UnavailableError(
        f"cannot reach a coordinator at {address}: the port is open, but nothing answered within "
        f"{ANSWER_S:g} s; the coordinator may be too busy, or it is another program"
    )


def _pause(seconds: float, follow_parent: bool) -> None:
    if not follow_parent:
        time.sleep(seconds)
        return
    if select.select([sys.stdin], [], [], seconds)[0] and not os.read(sys.stdin.fileno(), 4096):
        raise StoppedError("the command that started this process is gone")
