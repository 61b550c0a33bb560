"""A web server for published data on loopback, which takes faults and can misbehave."""

import gzip
import http.server
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENDLESS_BYTES = 128 * 1024**2
"""Bytes after which an endless answer ends, so that a reader that takes them all fails a test."""

PROMISED_BYTES = 1024**2
"""Size of every file by the word of the server."""

DRIPS, DRIP_S = 200, 0.02
"""Bytes of an answer that drips, and the pause after each."""

Misbehaviour = Callable[["DataServer", http.server.BaseHTTPRequestHandler], None]


class DataServer:
    """Serves a directory, with ranges unless told otherwise."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.url = ""
        self.asked: list[tuple[str, str]] = []
        """Name and Range header of each request."""
        self.status = 0
        """Status of every answer; 0: what is right."""
        self.knows_ranges = True
        self.damaged: dict[str, int] = {}
        """How often more a byte of each file is wrong."""
        self.surplus_bytes = 0
        """Bytes that follow each answer, though nobody asked for them."""
        self.misbehaves: Misbehaviour | None = None
        """What answers in place of all this."""
        self.sent_bytes = 0
        """Bytes of such answers that somebody took, or the system for them."""
        self.ended = threading.Event()

    def answer(self, handler: http.server.BaseHTTPRequestHandler, **headers: str) -> None:
        """Begin the answer that a file, or a range, should have."""
        handler.send_response(206 if "Range" in handler.headers else 200)
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.send_header("Connection", "close")
        handler.end_headers()

    def send(self, handler: http.server.BaseHTTPRequestHandler, blob: bytes) -> None:
        """Send a part of an answer."""
        handler.wfile.write(blob)
        self.sent_bytes += len(blob)

    def bytes_of(self, name: str, header: str) -> tuple[int, bytes]:
        """Status and body of one answer."""
        path = self.directory / name
        if not path.is_file():
            return 404, b"nothing here"
        blob, status = path.read_bytes(), 200
        found = re.fullmatch(r"bytes=(\d+)-(\d*)", header)
        if found and self.knows_ranges:
            blob, status = blob[int(found[1]) : int(found[2] or len(blob)) + 1], 206
        if self.damaged.get(name, 0) > 0:
            self.damaged[name] -= 1
            blob = bytes([blob[0] ^ 1]) + blob[1:]
        return status, blob + bytes(self.surplus_bytes)


def endless(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """An answer of any length to whatever was asked."""
    server.answer(handler)
    while server.sent_bytes < ENDLESS_BYTES:
        server.send(handler, bytes(1024**2))


def too_long(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """An answer that says how much is to come."""
    server.answer(handler, Content_Length=str(10**12))
    while server.sent_bytes < ENDLESS_BYTES:
        server.send(handler, bytes(1024**2))


def compressed(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """A small answer that becomes a large one."""
    server.answer(handler, Content_Encoding="gzip")
    server.send(handler, gzip.compress(bytes(16 * 1024**2)))


def dripping(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """A byte at once, and another from time to time."""
    server.answer(handler)
    for _ in range(DRIPS):
        server.send(handler, b"x")
        server.ended.wait(DRIP_S)


def redirecting(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """From here to here."""
    handler.send_response(302)
    handler.send_header("Location", handler.path)
    handler.send_header("Connection", "close")
    handler.end_headers()


def elsewhere(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """Another range than was asked for."""
    server.answer(handler, Content_Range="bytes 7-8/9")
    server.send(handler, b"xx")


def cut_once(server: DataServer, handler: http.server.BaseHTTPRequestHandler) -> None:
    """Half of a file, then the end of the connection; the next answers are right."""
    blob = (server.directory / handler.path.rpartition("/")[2]).read_bytes()
    server.misbehaves = None
    server.answer(handler, Content_Length=str(len(blob)))
    server.send(handler, blob[: len(blob) // 2])


def _handler(server: DataServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, header = self.path.rpartition("/")[2], self.headers.get("Range", "")
            server.asked.append((name, header))
            if server.misbehaves:
                self.close_connection = True
                server.misbehaves(server, self)
                return
            status, body = server.bytes_of(name, header)
            self.send_response(server.status or status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(PROMISED_BYTES))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class _Quiet(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that reads no more than it asked for closes the connection early."""


@contextmanager
def serving(directory: Path, port: int = 0) -> Iterator[DataServer]:
    """A server of a directory, at a free port unless one is given."""
    server = DataServer(directory)
    with _Quiet(("127.0.0.1", port), _handler(server)) as served:
        threading.Thread(target=served.serve_forever, args=(0.02,), daemon=True).start()
        server.url = f"http://127.0.0.1:{served.server_port}/data"
        try:
            yield server
        finally:
            server.ended.set()
            served.shutdown()
