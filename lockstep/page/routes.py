"""Routes of the page on the coordinator's admin port: those of `lockstep.page.site`, and three.

    GET /operator.json         the line that joins, and why others may not reach it
    GET /rounds.json?after=N   decided rounds after N, oldest first
    GET /model/NAME/FILE       a file of a published checkpoint

The page asks again every second or two (`/status.json` too), so it finds a coordinator that was
restarted without a reload. It takes scripts and data from its own address alone.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
from aiohttp import web

from coordinator.process import CoordinatorProcess
from coordinator.public_document import Part, public
from lockstep.page.model import Model
from lockstep.page.site import Answer, Site
from protocol.border.join_link import JoinLink, is_loopback
from protocol.errors import SettingsError
from protocol.planner.parameters import size_of


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
        self.model = Model(process.checkpoints)
        self._site = Site(self.part, operators=True)

    def part(self, part: Part) -> dict[str, Any]:
        """A part of what is public."""
        link, files = self._link, self.model.files
        join = "" if is_loopback(link.address) else _joins(link)
        return public(part, replace(self._process.view(), join=join, files=files))

    def routes(self) -> list[web.RouteDef]:
        """The routes, for an application of aiohttp."""
        return [
            web.get("/operator.json", self._operator),
            web.get("/rounds.json", self._rounds),
            web.get("/model/{name}/{file}", self.model.answer),
            web.get("/{path:(assets/.*|[a-z]*\\.json)?}", self._file),
        ]

    async def _file(self, request: web.Request) -> web.Response:
        if answer := self._site.answer(request.match_info["path"]):
            return response(answer, request)
        raise web.HTTPNotFound(text="expected a part of the page, found none of this name\n")

    async def _operator(self, _: web.Request) -> web.Response:
        link = self._link
        try:
            dense_bytes = 2 * size_of(self._process.rounds.spec.model).parameters
        except SettingsError:
            dense_bytes = None  # its size cannot be told without torch
        return _json(
            {
                "join": _joins(link),
                "only_this_machine": is_loopback(link.address),
                "own_address": link != self._process.link,
                "dense_bytes": dense_bytes,
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

    @property
    def _link(self) -> JoinLink:
        return self._reachable(self._process.link)


def response(answer: Answer, request: web.Request) -> web.Response:
    """The answer, gzipped where the reader takes that."""
    if "gzip" not in request.headers.get("Accept-Encoding", ""):
        return web.Response(body=answer.body, content_type=answer.kind, charset="utf-8")
    headers = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
    return web.Response(
        body=answer.packed, content_type=answer.kind, charset="utf-8", headers=headers
    )


def _joins(link: JoinLink) -> str:
    """The command that joins."""
    return f"lockstep join '{link.text()}'"


def _json(document: dict[str, Any]) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), content_type="application/json")
