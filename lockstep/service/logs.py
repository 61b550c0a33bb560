"""Log records on standard error: structured, one line each."""

import json
import logging
import sys

_CHATTY = ("aiohttp.access", "asyncio", "filelock", "matplotlib", "urllib3")
"""Loggers that are silent below WARNING unless everything is logged."""


class LineFormatter(logging.Formatter):
    """One record as one line: time, level, logger, message, then the fields of `extra` as
    key=value.
    """

    _STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        fields = {name: value for name, value in vars(record).items() if name not in self._STANDARD}
        return " ".join(
            [
                super().formatMessage(record),
                *(f"{name}={_plain(value)}" for name, value in fields.items()),
            ]
        )


def _plain(value: object) -> str:
    """A field's value, quoted when it holds a space, a quote, an equals sign or a line break."""
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return (
        json.dumps(text, ensure_ascii=False)
        if not text or any(character in ' "=\n' for character in text)
        else text
    )


def log_to_standard_error(debug: bool) -> None:
    """Sends records of level INFO and above to standard error; with `debug` all records."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter())
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.INFO, handlers=[handler], force=True
    )
    if not debug:
        for chatty in _CHATTY:
            logging.getLogger(chatty).setLevel(logging.WARNING)
