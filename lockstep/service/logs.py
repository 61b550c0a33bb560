"""Log records on standard error: structured, one line each.

Strangers cause records and write texts in them. So a record shows no control character, and the
number of records that one peer or all peers together can cause is limited, whatever their texts
are: by message, which is fixed in the code, and by peer or host.
"""

import json
import logging
import re
import sys
import time
from collections.abc import Callable

from cachetools import LRUCache

from protocol.border.text import clean
from protocol.border.token_bucket import TokenBucket, TokenBuckets

_CHATTY = ("aiohttp.access", "asyncio", "filelock", "matplotlib", "urllib3")
"""Loggers that are silent below WARNING unless everything is logged."""


PEER_FIELDS = ("peer", "remote", "address")
"""Fields of a record that name the peer that caused it."""

LINES_PER_PEER = 5
"""Lines of one message about one peer that may come at once; then `LINES_PER_PEER` a minute."""

LINES_PER_MESSAGE = 10
"""Lines of one message about all peers that come in a minute whatever others say: a rare message is
not lost in the flood of another."""

BYTES_ABOUT_PEERS = 30_000
"""Bytes of all other lines about peers that may come at once, and then in a minute: a run of 150
members may lose all of them at once, and strangers with ever new keys fill less than 100 kB of log
in a minute."""

MESSAGES_MAX = 1024
"""Messages whose left out lines are counted: all that the code has."""

FIELD_BYTES_MAX = 4096
"""Length of one field in a line."""

_ID = re.compile(r"\b([0-9a-f]{8})(?:[0-9a-f]{24}|[0-9a-f]{56})\b")
"""An id or a digest in hexadecimal, and its first characters."""


class LineLimit(logging.Filter):
    """Lets a bounded number of records about peers pass; the next one that passes tells the number
    of those `left_out` before it. Errors, and records about no peer, always pass.
    """

    def __init__(self, clock_ms: Callable[[], int] = lambda: time.monotonic_ns() // 10**6) -> None:
        super().__init__()
        self._clock_ms = clock_ms
        self._peers: TokenBuckets[tuple[str, str]] = TokenBuckets(
            LINES_PER_PEER / 60, LINES_PER_PEER
        )
        self._messages: TokenBuckets[str] = TokenBuckets(LINES_PER_MESSAGE / 60, LINES_PER_MESSAGE)
        self._all = TokenBucket(BYTES_ABOUT_PEERS / 60, BYTES_ABOUT_PEERS, clock_ms())
        self._formatter = LineFormatter()
        self._left_out: LRUCache[str, int] = LRUCache(MESSAGES_MAX)

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written."""
        peer = next((str(named) for name in PEER_FIELDS if (named := vars(record).get(name))), "")
        if not peer or record.levelno >= logging.ERROR:
            return True
        message = f"{record.name} {record.msg}"
        if not self._has_room(record, message, peer):
            self._left_out[message] = self._left_out.get(message, 0) + 1
            return False
        if left_out := self._left_out.pop(message, 0):
            record.left_out = left_out
        return True

    def _has_room(self, record: logging.LogRecord, message: str, peer: str) -> bool:
        now_ms = self._clock_ms()
        if not self._peers.take((message, _host(peer)), 1, now_ms):
            return False
        if self._messages.take(message, 1, now_ms):
            return True
        line = self._formatter.format(record).encode(errors="replace")
        return self._all.take(len(line) + 1, now_ms)


def _host(peer: str) -> str:
    """The peer without its port: a stranger has 65 535 of them."""
    host, colon, port = peer.rpartition(":")
    return host if colon and port.isdecimal() else peer


class LineFormatter(logging.Formatter):
    """One record as one line: time, level, logger, message, then the fields of `extra` as
    key=value.
    """

    _STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def __init__(self, form: str = "%(asctime)s %(levelname)s %(name)s %(message)s") -> None:
        super().__init__(form)

    def format(self, record: logging.LogRecord) -> str:
        """The record as a line; the lines of a traceback are indented, so that no text in it passes
        for a record.
        """
        first, *others = super().format(record).splitlines() or [""]
        cleaned = [clean(line, FIELD_BYTES_MAX) for line in others]
        return "\n".join([_printable(first), *(f"    | {line}" for line in cleaned)])

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        fields = {name: value for name, value in vars(record).items() if name not in self._STANDARD}
        return " ".join([super().formatMessage(record), *self._shown(fields)])

    def _shown(self, fields: dict[str, object]) -> list[str]:
        return [f"{name}={_plain(value)}" for name, value in fields.items()]


class TerminalFormatter(LineFormatter):
    """The same for a person at a terminal, who looks at one process and one run: the time of day,
    the level of warnings and errors, and ids by their first characters.
    """

    default_time_format = "%H:%M:%S"
    default_msec_format = None

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        line = _ID.sub(r"\1", super().formatMessage(record))
        return line if record.levelno < logging.WARNING else f"{record.levelname} {line}"

    def _shown(self, fields: dict[str, object]) -> list[str]:
        return super()._shown({name: value for name, value in fields.items() if name != "run"})


def _plain(value: object) -> str:
    """A field's value, quoted when it holds a space, a quote, an equals sign or a character that is
    not printable.
    """
    text = f"{value:.6g}" if isinstance(value, float) else str(value)[:FIELD_BYTES_MAX]
    if text and text.isprintable() and not any(character in ' "=' for character in text):
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _printable(line: str) -> str:
    return line if line.isprintable() else clean(line, len(line.encode(errors="replace")))


def without_traceback(record: logging.LogRecord) -> bool:
    """Says in one line that a client of the admin port speaks no HTTP, such as a node that was
    given the wrong port; it is the client's slip, and no fault of this program.
    """
    error = record.exc_info[1] if record.exc_info else None
    http = sys.modules.get("aiohttp.http_exceptions")  # loaded where a port is served
    if http and isinstance(error, http.HttpProcessingError):
        record.msg = "not HTTP: the admin port is for browsers and metrics, nodes use the other one"
        record.args, record.exc_info, record.exc_text = (), None, None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def log_to_standard_error(debug: bool) -> None:
    """Sends records of level INFO and above to standard error; with `debug` all records."""
    handler = logging.StreamHandler(sys.stderr)
    for_a_person = sys.stderr.isatty() and not debug
    handler.setFormatter(TerminalFormatter() if for_a_person else LineFormatter())
    handler.addFilter(LineLimit())
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True
    )
    logging.getLogger("aiohttp.server").addFilter(without_traceback)
    if not debug:
        for chatty in _CHATTY:
            logging.getLogger(chatty).setLevel(logging.WARNING)
