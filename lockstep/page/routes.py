"""Routes of the page on the coordinator's admin port.

    GET /                      the page
    GET /assets/NAME           its script, style sheets and charts
    GET /run.json              facts of the run that never change, and the line that joins it
    GET /rounds.json?after=N   decided rounds after N, oldest first
    GET /validation.json       the newest validation losses, oldest first
    GET /credit.json           what every author has given to the run, the most first

The page asks again every second or two (`/status.json` too), so it finds a coordinator that was
restarted without a reload. It takes scripts and data from its own address alone.
"""

from collections.abc import Callable
from importlib.resources import files
from typing import Any

import msgspec
from aiohttp import web

from coordinator.process import CoordinatorProcess
from coordinator.status_document import validation_points
from protocol.border.join_link import JoinLink, is_loopback
from protocol.errors import SettingsError
from protocol.planner.parameters import Size, size_of
from protocol.runfile import ModelSpec

AUTHORS_MAX = 200
"""Authors in the list of credit."""

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

_ASSETS = ("page.js", "charts.js", "page.css", "icon.svg", "uplot.js", "uplot.css")


class Page:
    """The routes of one coordinator's page. `reachable` makes the link that others can use of the
    one with the address at which the coordinator listens.
    """

    def __init__(
        self,
        process: CoordinatorProcess,
        reachable: Callable[[JoinLink], JoinLink] = lambda link: link,
    ) -> None:
        self._process, self._reachable = process, reachable
        folder = files("lockstep.page") / "assets"
        self._files = {name: (folder / name).read_bytes() for name in ("index.html", *_ASSETS)}

    def routes(self) -> list[web.RouteDef]:
        """The routes, for an application of aiohttp."""
        return [
            web.get("/", self._index),
            web.get("/assets/{name}", self._asset),
            web.get("/run.json", self._run),
            web.get("/rounds.json", self._rounds),
            web.get("/validation.json", self._validation),
            web.get("/credit.json", self._credit),
        ]

    async def _index(self, _: web.Request) -> web.Response:
        return self._file("index.html")

    async def _asset(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        if name not in _ASSETS:
            raise web.HTTPNotFound(text="expected an asset of the page, found none of this name\n")
        return self._file(name)

    def _file(self, name: str) -> web.Response:
        kind = _TYPES[name.rpartition(".")[2]]
        return web.Response(body=self._files[name], content_type=kind, charset="utf-8")

    async def _run(self, _: web.Request) -> web.Response:
        spec, given = self._process.rounds.spec, self._process.link
        link = self._reachable(given)
        size = _size(spec.model)
        return _json(
            {
                "run_id": self._process.run_id,
                "name": spec.name,
                "model": spec.model.type,
                "parameters": size.parameters if size else None,
                "dense_bytes": 2 * size.parameters if size else None,
                "steps": self._process.rounds.state.schedule(spec).steps,
                "quorum": spec.rounds.quorum,
                "join": f"lockstep join '{link.text()}'",
                "only_this_machine": is_loopback(link.address),
                "own_address": link != given,
            }
        )

    async def _rounds(self, request: web.Request) -> web.Response:
        text = request.query.get("after", "-1")
        try:
            after = int(text[:20])
        except ValueError:
            raise web.HTTPBadRequest(
                text=f"after: expected a round as a whole number, got {text[:20]!r}\n"
            ) from None
        return _json({"rounds": self._process.history.after(after)})

    async def _validation(self, _: web.Request) -> web.Response:
        return _json({"points": validation_points(self._process.rounds.state)})

    async def _credit(self, _: web.Request) -> web.Response:
        credit, names = self._process.history.credit, self._process.history.names
        most = sorted(credit, key=lambda peer: (-credit[peer].samples, peer))[:AUTHORS_MAX]
        authors = [
            {
                "peer_id": peer,
                "name": names.get(peer, ""),
                "rounds": credit[peer].rounds,
                "samples": credit[peer].samples,
                "payload_bytes": credit[peer].payload_bytes,
            }
            for peer in most
        ]
        return _json({"authors": authors, "authors_in_all": len(credit)})


def _size(model: ModelSpec) -> Size | None:
    """The size of the network; None where it cannot be told without torch."""
    try:
        return size_of(model)
    except SettingsError:
        return None


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
