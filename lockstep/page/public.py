"""The port of the public page: what is public of a run, for everybody who finds the address.

    the world --TCP--> gate (`border.gate`) --a local socket for each connection--> aiohttp

It stands behind a gate of its own, as the port for nodes does: connections are counted by network,
nobody proves a key here, and one that asks for nothing, or reads nothing, is cut. It answers GET
and HEAD of a few fixed paths, from bytes that are made once a second at most, and takes no bodies.
Who asks too often is refused and cut, and what it sent is wasted, so that the gate soon lets its
network in no more. What is told is the business of `coordinator.public_document`.
"""

import socket
import time

from aiohttp import web
from aiohttp.typedefs import Handler

from border.crowd import CALL_BYTES
from border.gate import Gate
from border.lane import UNIX_SOCKETS
from lockstep.page.model import Model
from lockstep.page.routes import response
from lockstep.page.site import Site
from lockstep.service.admin import HEADERS
from protocol.border.networks import host_of
from protocol.border.token_bucket import TokenBucket, TokenBuckets
from protocol.errors import AddressInUseError, SettingsError

PER_HOST = (20.0, 200)
"""Requests from one host: per second, and at once. An open page makes one in two seconds; behind
one address there may be a school."""

IN_ALL = (200.0, 1000)
"""Requests from everybody: per second, and at once. They cost a tenth of a core, and the run goes
before its page."""

LINE_BYTES_MAX = 2048
"""Bytes of the first line of a request, and of each header."""

HEADERS_MAX = 64
"""Headers of a request; a browser sends twenty."""

KEEPALIVE_S = 15
"""Time in which a browser may ask again over the same connection."""

LASTS_S = 300
"""Time for which a browser may keep scripts and style sheets."""


class PublicPage:
    """The public page at `listen`, HOST:PORT."""

    def __init__(self, site: Site, listen: str, model: Model) -> None:
        self._site, self._model = site, model
        # A browser that is cut opens another connection, and takes what was not asked for ill.
        self._gate = Gate(listen, farewell=b"")
        self._of_host: TokenBuckets[str] = TokenBuckets(*PER_HOST)
        self._of_all = TokenBucket(*IN_ALL, _now_ms())
        application = web.Application(middlewares=[self._bounded], client_max_size=1)
        application.on_response_prepare.append(_add_headers)
        application.add_routes(
            [web.get("/model/{name}/{file}", self._download), web.get("/{path:.*}", self._file)]
        )
        self._runner = web.AppRunner(
            application,
            access_log=None,
            shutdown_timeout=1.0,
            keepalive_timeout=KEEPALIVE_S,
            lingering_time=0,
            max_line_size=LINE_BYTES_MAX,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
        )

    async def start(self, places: int) -> int:
        """Serves up to `places` connections; returns the port.

        Raises `AddressInUseError`, `SettingsError`, `ShortageError`, `StorageError`.
        """
        inside = _Inside()
        # None of them proves a key, and the gate gives those half of its places.
        try:
            port = self._gate.attach(inside, 2 * places)
        except (AddressInUseError, SettingsError) as error:
            raise type(error)(str(error).replace("--listen", "--public-page")) from None
        try:
            await self._runner.setup()
            assert inside.socket
            await web.SockSite(self._runner, inside.socket).start()
            await self._gate.open()
        except BaseException:
            await self.stop()
            raise
        return port

    async def stop(self) -> None:
        """Closes the port. Safe to call twice."""
        await self._gate.close()
        await self._runner.cleanup()

    @web.middleware
    async def _bounded(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if refused := self._refusal(request):
            return refused
        for _ in range(0, _bytes_of(request), CALL_BYTES):
            self._gate.hear(_peer_of(request))
        return await handler(request)

    def _host_of(self, request: web.Request) -> str:
        return host_of(self._gate.remote(_peer_of(request)))

    def _refusal(self, request: web.Request) -> web.Response | None:
        """The answer to a request that is not heard; its connection ends."""
        now_ms, host = _now_ms(), self._host_of(request)
        if not (self._of_host.take(host, 1, now_ms) and self._of_all.take(1, now_ms)):
            text, status = "expected fewer requests; try again in some seconds\n", 429
        elif request.method not in ("GET", "HEAD") or request.can_read_body:
            text, status = "expected GET without a body\n", 405
        else:
            return None
        refused = web.Response(status=status, text=text)
        refused.force_close()
        return refused

    async def _download(self, request: web.Request) -> web.StreamResponse:
        return await self._model.answer(request, self._host_of(request))

    async def _file(self, request: web.Request) -> web.Response:
        if answer := self._site.answer(request.match_info["path"]):
            return response(answer, request)
        return web.Response(status=404, text="expected the page of a run, found nothing here\n")


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS | {"Server": "Lockstep"})
    if response.status == web.HTTPOk.status_code and request.path.startswith("/assets/"):
        response.headers["Cache-Control"] = f"max-age={LASTS_S}"


class _Inside:
    """Listens behind a gate, in the place of a gRPC server."""

    def __init__(self) -> None:
        self.socket: socket.socket | None = None

    def add_insecure_port(self, address: str) -> int:
        """Binds a socket to an address as gRPC writes it; returns the port, if it has one."""
        if UNIX_SOCKETS:
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.bind(address.removeprefix("unix:"))
            return 0
        host, _, port = address.rpartition(":")
        self.socket = socket.create_server((host, int(port)))
        return int(self.socket.getsockname()[1])


def _bytes_of(request: web.Request) -> int:
    """Bytes of a request as it came, about."""
    headers = sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    return len(request.raw_path) + headers + CALL_BYTES


def _peer_of(request: web.Request) -> str:
    """The inner end of a connection, as the gate names it."""
    name = request.transport.get_extra_info("peername") if request.transport else ""
    return f"unix:{name}" if isinstance(name, str) else f"ipv4:{name[0]}:{name[1]}"


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
