"""What the engine is told of a container's health."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

from deploy.healthcheck import reason


@contextmanager
def answering(code: int, text: str) -> Iterator[str]:
    """URL of a server that answers everything like that."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/readyz"
        finally:
            server.shutdown()
            thread.join()


def test_a_ready_process_gives_no_reason() -> None:
    with answering(200, "ready\n") as url:
        assert reason(url) == ""


def test_an_unready_process_s_own_words_are_the_reason() -> None:
    with answering(503, "builds the model\n") as url:
        assert reason(url) == "builds the model"


def test_a_process_that_does_not_listen_is_named_with_its_address() -> None:
    with answering(200, "") as url:
        pass
    assert reason(url).startswith(f"no answer from {url}: ")
