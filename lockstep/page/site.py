"""The files and documents of a run's page, as both ports and the export give them.

    index.html                        the page; the operator's has more sections and a script more
    assets/NAME                       scripts, style sheets, icon
    run.json, curve.json,
    contributors.json                 what is public (`coordinator.public_document`)

A document is made when it is asked for, and kept for some time: who asks more often costs nothing.
"""

import gzip
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import msgspec

from coordinator.public_document import Part

KEPT_S: Mapping[Part, float] = {"run": 1.0, "curve": 10.0, "contributors": 10.0}
"""Time for which a document is given as it is: some change with each round, some are large."""

OPERATORS = "<!-- operator -->"
"""The place in the page of what the operator alone sees."""

_TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}

_ASSETS = ("page.js", "charts.js", "page.css", "icon.svg", "uplot.js", "uplot.css")

_OPERATORS_ASSETS = ("operator.js",)


@dataclass(frozen=True, slots=True)
class Answer:
    """The bytes of a file or document."""

    kind: str
    body: bytes
    packed: bytes
    """The same, gzipped."""
    lasts: bool = False
    """Whether it stays as it is while this release runs."""


class Site:
    """The page of one run. `part` makes a public document, `written_s` tells the wall clock,
    `clock_s` a clock that never runs backwards; both in seconds.
    """

    def __init__(
        self,
        part: Callable[[Part], dict[str, Any]],
        *,
        operators: bool = False,
        written_s: Callable[[], float] = time.time,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._part, self._written_s, self._clock_s = part, written_s, clock_s
        self._kept: dict[Part, tuple[float, Answer]] = {}
        self.files = _files(operators=operators)
        """Everything that stays as it is, by path."""

    def answer(self, path: str) -> Answer | None:
        """What lies at a path; None: nothing does."""
        name = path.removesuffix(".json")
        for part in KEPT_S:
            if path != name and part == name:
                return self._document(part)
        return self.files.get(path or "index.html")

    def _document(self, part: Part) -> Answer:
        now_s = self._clock_s()
        made_s, answer = self._kept.get(part, (0.0, None))
        if answer is None or now_s - made_s >= KEPT_S[part]:
            document = self._part(part) | {"written_s": int(self._written_s())}
            # msgspec writes NaN and infinity as null; the standard encoder writes words that are no
            # JSON.
            answer = _answer("application/json", msgspec.json.encode(document))
            self._kept[part] = now_s, answer
        return answer


def _files(*, operators: bool) -> dict[str, Answer]:
    folder = files("lockstep.page") / "assets"
    index = (folder / "index.html").read_text(encoding="utf-8")
    names = _ASSETS + (_OPERATORS_ASSETS if operators else ())
    more = (folder / "operator.html").read_text(encoding="utf-8") if operators else ""
    index = index.replace(OPERATORS, more)
    found = {f"assets/{name}": _file(name, (folder / name).read_bytes()) for name in names}
    return {"index.html": _file("index.html", index.encode()), **found}


def _file(name: str, body: bytes) -> Answer:
    return _answer(_TYPES[name.rpartition(".")[2]], body, lasts=name != "index.html")


def _answer(kind: str, body: bytes, *, lasts: bool = False) -> Answer:
    return Answer(kind, body, gzip.compress(body, 6, mtime=0), lasts)
