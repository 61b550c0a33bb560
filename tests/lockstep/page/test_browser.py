"""The page in headless Chromium: against a live coordinator (right numbers, updates without a
reload, an away coordinator, foreign text as text), and with the largest and oddest runs.
"""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from coordinator.history import Credit, History
from coordinator.machine.events import acts
from coordinator.public_document import CONTRIBUTORS_MAX, Part, View, public
from lockstep.page import site
from lockstep.page.model import Model
from lockstep.page.public import PublicPage
from lockstep.page.routes import Page
from lockstep.service.admin import AdminServer
from protocol import wire_pb2 as wire
from protocol.ids import PeerId, sha256
from tests.coordinator.client import node_of, quiet_spec, running, train
from tests.coordinator.machine.driver import Driver

webdriver = pytest.importorskip("selenium.webdriver")

PATIENCE_S, POLL_S = 60, 0.2
CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")

pytestmark = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="no Chromium here (Debian: packages chromium-driver)"
)


@pytest.fixture
def browser() -> Iterator[Any]:
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--window-size=390,900"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        yield driver
    finally:
        driver.quit()


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until the page shows something."""
    for _ in range(int(PATIENCE_S / POLL_S)):
        if await asyncio.to_thread(condition):
            return
        await asyncio.sleep(POLL_S)
    raise AssertionError(f"the page does not show {what}")


async def test_the_page_shows_a_live_run_and_finds_it_again_after_a_restart(
    tmp_path: Path, browser: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "KEPT_S", dict.fromkeys(site.KEPT_S, 0.0))
    spec = quiet_spec(retention={"snapshot_every": 1})

    def text(name: str) -> str:
        return str(browser.find_element("id", name).text)

    async with (
        running(tmp_path, spec) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        server = AdminServer(process, page=Page(process).routes())
        url = await server.start()
        await one.say(one.hello(await one.connect(), name="<img src=x onerror=alert(1)>"))
        await one.hear("welcome")
        await asyncio.to_thread(browser.get, f"{url}/?me={one.peer}")
        browser.execute_script("PAUSE_MS.seen = 100; DUE_S.curve = DUE_S.contributors = 0")
        await until(lambda: text("phase") == "waiting", "that the run waits")
        assert text("doing").startswith("Waiting for members")
        hidden = "return document.querySelectorAll('.of-rounds[hidden], #curve[hidden]').length"
        assert browser.execute_script(hidden) == 3, "empty boxes are not shown"
        await until(lambda: "<img src=x" in text("members"), "a foreign name as text")
        await one.call.done_writing()
        await one.join()
        await two.join()
        await train([one, two], 2)
        steps = spec.schedule.steps
        await until(lambda: text("steps").startswith(f"2 of {steps} steps"), "the steps so far")
        assert text("members-count") == "2"
        assert text("loss").startswith(f"{process.status()['loss']:.3f}")
        assert text("replicas").startswith("equal")
        turn = process.rounds.state.evaluation.turn
        assert turn is not None
        said = wire.Evaluated(round=turn.round, loss=1.2345, samples=8)
        await (one if turn.peer == one.peer else two).say(wire.NodeMessage(evaluated=said))
        await until(lambda: text("validation").startswith("1.234"), "a validation loss")
        mine = "return document.querySelectorAll('tr.mine').length"
        await until(lambda: browser.execute_script(mine) == 1, "my own row")
        points = "return state.curve.validation_rounds.length"
        await until(lambda: browser.execute_script(points) == 1, "its point in the chart")
        for switch in ("smooth", "log"):
            browser.find_element("id", switch).click()
        await train([one, two], 1)
        await until(lambda: text("steps").startswith("3 of"), "a further step, without a reload")
        await until(lambda: text("me-rank").endswith("of 2"), "my rank")
        bars = "return document.querySelectorAll('#timeline .bar.committed').length"
        await until(lambda: browser.execute_script(bars) == 3, "a bar for each round")
        await process.desk.order(acts.Admit("token"))
        await process.desk.order(acts.Announce("<b>on Sunday</b>"))
        await until(lambda: "<b>on Sunday</b>" in text("notices"), "the operator's notice as text")
        assert "add --token TOKEN" in text("token-note")
        await one.say(wire.NodeMessage(applied=wire.Applied(round=2, state_digest=7)))
        await until(lambda: "not equal" in text("problems"), "that copies differ")
        assert text("phase") == "problem"
        assert browser.title.startswith("⚠")
        icon = browser.find_element("id", "icon").get_attribute("href")
        assert "b3402e" in icon, "a red icon"
        width = browser.execute_script("return document.documentElement.scrollWidth")
        assert width <= browser.execute_script("return document.documentElement.clientWidth")
        assert browser.get_log("browser") == []
        await server.stop()
    await until(lambda: "does not answer" in text("problems"), "a coordinator that is away")
    assert browser.title.startswith("away")
    async with running(tmp_path, spec) as again:
        server = AdminServer(again, url.removeprefix("http://"), page=Page(again).routes())
        await server.start()
        await until(lambda: "does not answer" not in text("problems"), "the coordinator again")
        assert text("steps").startswith("3 of")
        await server.stop()
    while_away = [entry["message"] for entry in browser.get_log("browser")]
    assert all("ERR_CONNECTION" in each or "Failed to fetch" in each for each in while_away)


ROUNDS = 1_000_000

KEYS = [PeerId(sha256(b"%d" % number).hex()[:32]) for number in range(CONTRIBUTORS_MAX)]

ODD = ["<script>x</script>", "W" * 64, "\u202etxt.exe", "\u05e9\u05dc\u05d5\u05dd", "\0\n'\"&lt;"]

DRAW_MS_MAX = 1_000
"""Time for all that is drawn anew: some 20 ms on a free core."""


class LargestRun:
    """What is public of a run with as many keys and rounds as there may be, and with odd names."""

    def __init__(self) -> None:
        self.driver, self.history = Driver(), History()
        self.behind_s = 0
        for place, key in enumerate(KEYS):
            self.history.credit[key] = Credit(10_000 - place, 10_000 - place, 0, {0: 1})
        self.history.name(zip(KEYS, ODD, strict=False))
        for round in range(ROUNDS):
            self.history.curve.add(round, 2 + 3 * math.exp(-5 * round / ROUNDS))

    def part(self, part: Part) -> dict[str, Any]:
        found = public(part, View(self.driver.machine, self.history, self.driver.now_ms, ""))
        if part != "run":
            return found
        return found | {"steps": {"committed": ROUNDS, "skipped": 9, "total": 2 * ROUNDS}}

    def written_s(self) -> float:
        """The wall clock of its coordinator."""
        return site.time.time() - self.behind_s


@pytest.fixture
async def largest() -> AsyncIterator[tuple[LargestRun, str]]:
    run = LargestRun()
    page = PublicPage(
        site.Site(run.part, written_s=run.written_s), "127.0.0.1:0", Model(Path("none"))
    )
    yield run, f"http://127.0.0.1:{await page.start(64)}"
    await page.stop()


@pytest.mark.slow  # a million rounds and a browser
@pytest.mark.parametrize("width", [390, 1440])
async def test_the_largest_run_is_drawn_at_once_and_fits_the_screen(
    largest: tuple[LargestRun, str], browser: Any, width: int
) -> None:
    run, url = largest

    def told(script: str) -> Any:
        return browser.execute_script(f"return {script}")

    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    await asyncio.to_thread(browser.get, f"{url}/?me={KEYS[4000][:8]}")
    await until(lambda: bool(told("state.contributors && state.curve")), "the run")
    assert told("document.getElementById('me-rank').textContent") == "4,001 of 5,000"
    assert told("document.querySelectorAll('#contributors tbody tr').length") == 16, "15 and mine"
    assert 512 <= told("state.curve.rounds.length") <= 1024
    assert told("state.curve.rounds.at(-1)") > 0.99 * ROUNDS
    assert told("due('contributors')") >= 200, "a long list is asked for less often"
    took_ms = told("(() => { const t = performance.now(); showRun(state.run); showCurve(); "
                   "showContributors(); return performance.now() - t; })()")  # fmt: skip
    assert took_ms < DRAW_MS_MAX
    assert told("document.querySelector('td.name script')") is None
    assert told("document.getElementById('loss').textContent").startswith("no number")
    assert told("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    run.behind_s = 40 * 86_400
    browser.execute_script("PAUSE_MS.seen = 100")
    await until(lambda: bool(told("state.run.age_s > 1e6 && state.renewed")), "a wrong clock")
    assert told("document.getElementById('phase').textContent") == "waiting", "it is not old"
    assert [each for each in browser.get_log("browser") if each["level"] == "SEVERE"] == []
