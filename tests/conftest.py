"""The order of the suite: the files that take longest come first, so that no worker ends alone.

The seconds of each file stand in `durations.json`; `make durations` measures them anew. A file
that is not listed counts as one of average length.
"""

import json
import os
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest

os.environ.setdefault("LOCKSTEP_NO_TRY_MODEL", "true")  # a coordinator's start would take seconds

DURATIONS = Path(__file__).with_name("durations.json")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--record-durations` writes `durations.json` at the end of the run."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that hands out the tests hears of all of them."""
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first; the tests of a file stay as they were collected."""
    seconds: dict[str, float] = json.loads(DURATIONS.read_text())
    average = mean(seconds.values())
    items.sort(key=lambda item: -seconds.get(item.nodeid.partition("::")[0], average))


class _Recorder:
    """Sums the seconds of each file's tests."""

    def __init__(self) -> None:
        self._seconds: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for the set-up, the call and the end of each test."""
        self._seconds[report.nodeid.partition("::")[0]] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Called once, when all tests have ended."""
        rounded = {file: round(seconds, 1) for file, seconds in sorted(self._seconds.items())}
        DURATIONS.write_text(json.dumps(rounded, indent=1) + "\n")
