"""The admin port of a process, for its operator, a monitor or a supervisor.

    GET /metrics      Prometheus text of the process's registry
    GET /healthz      200 while the event loop turns
    GET /readyz       200 while the process does its work, else 503 with the reason in words
    GET /status.json  the process's own status document

A coordinator adds the routes of its page (`lockstep.page`). The port is bound to loopback unless
told otherwise, because it has no authentication; it answers questions and changes nothing. A port
on loopback answers to hosts of loopback alone: a page of the web whose name was made to mean
127.0.0.1 would read it through the operator's browser. One that listens elsewhere is read by
everybody who reaches it, under whatever name a proxy or a monitor calls it.
"""

import asyncio
import platform
from collections.abc import Sequence
from typing import Protocol
from urllib.parse import urlsplit

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from lockstep import __version__
from protocol.addresses import listen_error, parse_address
from protocol.border.networks import ip_of
from protocol.limits import CONNECTIONS_MAX
from protocol.shortage import shortages

SHUTDOWN_S = 1.0
"""Time for open requests when the process stops; every answer here is immediate."""


HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
"""Headers of every answer: nothing of another host is loaded, nothing inline runs, and no page of
another host gets or frames it."""


class Service(Protocol):
    """The parts of a coordinator, node or relay that the admin port shows."""

    registry: CollectorRegistry

    def status(self) -> dict[str, object]:
        """The status as a document that JSON can hold."""

    def unready(self) -> str:
        """The reason why the process does not do its work now; empty when it does."""


class AdminServer:
    """Serves one `Service` on one address, with the routes of `page` if it has one."""

    def __init__(
        self,
        service: Service,
        listen: str = "127.0.0.1:0",
        page: Sequence[web.RouteDef] = (),
        *,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        """`connections_max`: open at once; a further one is closed when it comes."""
        self._service = service
        self._build = build_registry()
        self._listen, self._connections_max = listen, connections_max
        self._port: asyncio.Server | None = None
        self.port = 0
        """Bound port; 0 before the start."""
        routes = [
            web.get("/metrics", self._metrics),
            web.get("/healthz", self._healthz),
            web.get("/readyz", self._readyz),
            web.get("/status.json", self._status),
            *page,
        ]
        application = web.Application(middlewares=[self._own_hosts])
        application.on_response_prepare.append(_add_headers)
        application.add_routes(routes)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=SHUTDOWN_S)

    async def start(self) -> str:
        """Binds and serves; returns the URL, with the real port where 0 was asked for.

        Raises `SettingsError` for an invalid address, `AddressInUseError` for one that is taken.
        """
        host, _, port = parse_address(self._listen, default_port=0).rpartition(":")
        await self._runner.setup()
        loop = asyncio.get_running_loop()
        try:
            with shortages(f"listen on {self._listen} (--admin)"):
                self._port = await loop.create_server(self._protocol, host.strip("[]"), int(port))
        except OSError as error:
            await self._runner.cleanup()
            raise listen_error(error, self._listen, "--admin") from error
        host, self.port = self._port.sockets[0].getsockname()[:2]
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"

    async def stop(self) -> None:
        """Closes the port, if it is open."""
        if self._port:
            self._port.close()
        await self._runner.cleanup()

    def _protocol(self) -> asyncio.BaseProtocol:
        """What handles a new connection."""
        serving = self._runner.server
        assert serving, "the port opens after it"
        full = len(serving.connections) >= self._connections_max
        return _Closing() if full else serving()

    @web.middleware
    async def _own_hosts(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answers on loopback what was asked of loopback; see above."""
        host = request.headers.get("Host", "")  # empty: HTTP/1.0, no browser
        if host and self._on_loopback and not self._is_own(host):
            text = (
                f"expected a Host of this machine, such as 127.0.0.1 or localhost, got "
                f"{host[:80]!a}: the admin port is on loopback, and a proxy in front of it sends "
                "Host: 127.0.0.1\n"
            )
            return web.Response(status=421, text=text)
        return await handler(request)

    @property
    def _on_loopback(self) -> bool:
        sockets = self._port.sockets if self._port else ()
        return all(_is_loopback(each.getsockname()[0]) for each in sockets)

    def _is_own(self, host: str) -> bool:
        named, own = _name_of(host), _name_of(self._listen)
        return named in ("localhost", own) or _is_loopback(named)

    async def _metrics(self, _: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(self._service.registry) + generate_latest(self._build),
            headers={"Content-Type": CONTENT_TYPE_LATEST},
        )

    async def _healthz(self, _: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _readyz(self, _: web.Request) -> web.Response:
        reason = self._service.unready()
        return web.Response(status=503 if reason else 200, text=f"{reason or 'ready'}\n")

    async def _status(self, _: web.Request) -> web.Response:
        # msgspec writes NaN and infinity as null; the standard encoder writes words that are no
        # JSON.
        return web.Response(
            body=msgspec.json.encode(self._service.status()), content_type="application/json"
        )


class _Closing(asyncio.Protocol):
    """Closes a connection that is one too many."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


async def _add_headers(_: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)


def _name_of(host: str) -> str:
    """The host in HOST, HOST:PORT or [IPV6]:PORT; empty where it is none of these."""
    try:
        return (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return ""


def _is_loopback(host: str) -> bool:
    ip = ip_of(host)
    return ip is not None and ip.is_loopback


def build_registry() -> CollectorRegistry:
    """A registry with the release that this process runs."""
    collectors = CollectorRegistry()
    text = "1; the labels say which release this process runs."
    build = Gauge("lockstep_build_info", text, ["version", "python"], registry=collectors)
    build.labels(__version__, platform.python_version()).set(1)
    return collectors
