"""Which tests are played, and in which order: the files that take longest come first, so that no
worker ends alone.

    not slow          `make test`
    --quick           `make quick`: of these the files that take a second at most
    --landing S       `make landing`: and S seconds of the long ones, drawn (`tests.support.draw`)

The seconds stand in `durations.json`: of each file those of its tests that are not slow, and of
each slow test its own. `--record-durations` measures those that it plays anew.
"""

import functools
import json
import os
from collections import Counter
from pathlib import Path
from statistics import mean

import pytest
from hypothesis import HealthCheck, settings

from tests.support.draw import Draw, Drawn, changed_paths, drawn, tree_word
from tests.support.sources import ROOT

os.environ.setdefault("LOCKSTEP_NO_TRY_MODEL", "true")  # a coordinator's start would take seconds

# On a busy machine an example takes as long as it takes.
settings.register_profile(
    "any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("any machine")

DURATIONS = Path(__file__).with_name("durations.json")

QUICK_S = 1.0
"""Longest time of a file of `make quick`."""

AGAIN_MAX = 5
"""Most failures that may be those of a busy machine: a fault of the program fails alone too."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options of this suite."""
    parser.addoption("--record-durations", action="store_true", help="write tests/durations.json")
    parser.addoption("--quick", action="store_true", help="only files that take a second at most")
    parser.addoption("--landing", type=float, metavar="S", help="add S seconds of slow tests")
    parser.addoption("--draw", metavar="WORD", help="what decides; default: the tree's hash")
    parser.addoption(
        "--again",
        action="store_true",
        help=f"with --last-failed: refuse where more than {AGAIN_MAX} failed",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Only the process that hands out the tests hears of all of them."""
    if config.option.draw is None:
        config.option.draw = tree_word()
    config.stash[DRAWN] = _drawn(config)
    if config.getoption("--record-durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Recorder())


DRAWN = pytest.StashKey[Drawn | None]()


def _drawn(config: pytest.Config) -> Drawn | None:
    budget_s = config.option.landing
    if budget_s is None:
        return None
    return drawn(Draw(config.option.draw), recorded()["slow"], changed_paths(), budget_s)


@functools.cache
def recorded() -> dict[str, dict[str, float]]:
    """The times of the newest measurement: "files" and "slow"."""
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return found


def pytest_report_header(config: pytest.Config) -> list[str]:
    """What is drawn, and the line that draws it again."""
    chosen = config.stash[DRAWN]
    if chosen is None:
        return []
    return [
        f"drawn: {chosen.told(len(recorded()['slow']))}",
        f"the same again: make landing DRAW={config.option.draw}",
        *(f"  {name}" for name in sorted(chosen.tests)),
    ]


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out what is not quick, before it is imported."""
    if not config.option.quick or not collection_path.name.startswith("test_"):
        return None
    seconds = recorded()["files"].get(str(collection_path.relative_to(ROOT)), 0.0)
    return True if seconds > QUICK_S else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The longest files first; the tests of a file stay as they were collected."""
    if config.option.again and len(items) > AGAIN_MAX:
        raise pytest.UsageError(f"expected at most {AGAIN_MAX} failed tests, got {len(items)}")
    times = recorded()
    chosen = config.stash[DRAWN]
    if chosen is not None:
        new = {item.nodeid for item in items} - times["slow"].keys()
        played = chosen.tests | new
        left = [item for item in items if _is_slow(item) and item.nodeid not in played]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if not _is_slow(item) or item.nodeid in played]
    files = Counter(times["files"])
    average = mean(times["files"].values())
    for item in items:
        if _is_slow(item):
            files[_file(item.nodeid)] += times["slow"].get(item.nodeid, average)
    items.sort(key=lambda item: -files.get(_file(item.nodeid), average))


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@pytest.fixture(scope="session")
def draw(pytestconfig: pytest.Config) -> Draw:
    """The chance of this session, for tests whose seeds move."""
    return Draw(pytestconfig.option.draw)


class _Recorder:
    """Sums the seconds of each file's tests, and of each slow test."""

    def __init__(self) -> None:
        self._files: Counter[str] = Counter()
        self._slow: Counter[str] = Counter()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Called for the set-up, the call and the end of each test."""
        if "slow" in report.keywords:
            self._slow[report.nodeid] += report.duration
        else:
            self._files[_file(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        """Called once, when all tests have ended; what was not played keeps its time."""
        times = recorded()
        for kind, found in (("files", self._files), ("slow", self._slow)):
            times[kind] |= {name: round(seconds, 1) for name, seconds in found.items()}
            times[kind] = dict(sorted(times[kind].items()))
        times["files"] = {name: s for name, s in times["files"].items() if (ROOT / name).exists()}
        times["slow"] = {
            name: s for name, s in times["slow"].items() if (ROOT / _file(name)).exists()
        }
        DURATIONS.write_text(json.dumps(times, indent=1) + "\n")
