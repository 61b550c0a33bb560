"""A web server for published data on loopback, which takes faults."""

import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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

    def bytes_of(self, name: str, header: str) -> tuple[int, bytes]:
        """Status and body of one answer."""
        path = self.directory / name
        if not path.is_file():
            return 404, b"nothing here"
        blob, status = path.read_bytes(), 200
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", header)
        if found and self.knows_ranges:
            blob, status = blob[int(found[1]) : int(found[2]) + 1], 206
        if self.damaged.get(name, 0) > 0:
            self.damaged[name] -= 1
            blob = bytes([blob[0] ^ 1]) + blob[1:]
        return status, blob + bytes(self.surplus_bytes)


def _handler(server: DataServer) -> type[http.server.BaseHTTPRequestHandler]:
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name, header = self.path.rpartition("/")[2], self.headers.get("Range", "")
            server.asked.append((name, header))
            status, body = server.bytes_of(name, header)
            self.send_response(server.status or status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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
        threading.Thread(target=served.serve_forever, daemon=True).start()
        server.url = f"http://127.0.0.1:{served.server_port}/data"
        try:
            yield server
        finally:
            served.shutdown()
