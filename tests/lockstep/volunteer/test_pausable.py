"""A node rests and goes on as its owner wishes, and leaves politely each time."""

import asyncio
import gc
import socket
import stat
import weakref
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from lockstep.exit_codes import StoppedError
from lockstep.volunteer import pausable
from lockstep.volunteer.control import ControlSocket, Wish, ask
from lockstep.volunteer.ledger import Ledger, read_all
from lockstep.volunteer.limits import Limits, parse_hours
from lockstep.volunteer.others.quiet import QuietLimits
from lockstep.volunteer.others.watch import OthersWatch, Readers
from lockstep.volunteer.pausable import PausableNode, RunFacts
from protocol.errors import SettingsError, UnavailableError
from protocol.ids import RunId
from tests.support.waiting import until

RUN = RunId("12" * 16)


class FakeNode:
    def __init__(self, happened: list[str]) -> None:
        self.registry = CollectorRegistry()
        self._happened = happened
        self.runs = False
        self.limited: list[tuple[int, int]] = []
        self.rates: list[tuple[int, int]] = []
        self._end: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def start(self, connections_max: int) -> None:
        self._happened.append("start")

    async def run(self) -> str:
        self.runs = True
        reason = await self._end
        self._happened.append(reason)
        return reason

    async def stop(self) -> None:
        self._happened.append("stop")

    def leave(self) -> None:
        self.end("left politely")

    def end(self, reason: str) -> None:
        if not self._end.done():
            self._end.set_result(reason)

    def limit(self, *, duty_cycle: int, gpu_memory: int, upload: int, download: int) -> None:
        if gpu_memory < 100:
            raise SettingsError("gpu_memory: expected a GPU")
        self.limited.append((duty_cycle, gpu_memory))
        self.rates.append((upload, download))

    def status(self) -> dict[str, Any]:
        rounds = {"trained": 3, "counted": 2, "left_out": 1}
        return {
            "round": 7,
            "tokens": 10,
            "rounds": rounds,
            "standing": {"state": "counted", "reason": ""},
        }

    def unready(self) -> str:
        return ""


class Owner:
    """A pausable node whose nodes are fakes."""

    def __init__(
        self,
        place: Path,
        limits: Limits | None = None,
        idle_s: float = 0.0,
        judge: Callable[[Limits, int], str] = lambda limits, members: "",
    ) -> None:
        self.happened: list[str] = []
        self.nodes: list[FakeNode] = []
        self.made_with: list[Limits] = []
        self.idle_s = idle_s
        limits = limits or Limits()
        others = OthersWatch(limits.others, self._readers)
        facts, ledger = RunFacts(judge, "http://run"), Ledger(place, RUN, "first")
        self.node = PausableNode(self._make, limits, ledger, others, facts)

    def _readers(self) -> Readers:
        return Readers(lambda: self.idle_s, lambda: 0.0, lambda: None, lambda: True)

    def _make(self, limits: Limits) -> FakeNode:
        self.made_with.append(limits)
        self.nodes.append(FakeNode(self.happened))
        return self.nodes[-1]

    def state(self) -> str:
        return str(self.node.status()["standing"]["state"])

    async def begin(self) -> "asyncio.Task[str]":
        await self.node.start()
        running = asyncio.create_task(self.node.run())
        if self.nodes:
            await until(lambda: self.nodes[-1].runs)
        return running


async def test_a_pause_leaves_politely_and_resume_comes_back(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    assert "until `lockstep resume`" in owner.node.obey(Wish("pause"))["said"]
    await until(lambda: owner.state() == "resting")
    assert owner.happened == ["start", "left politely", "stop"]
    assert owner.node.unready().startswith("rests: paused")
    assert owner.node.status()["round"] == 7, "what it did stays to be seen"
    assert owner.node.obey(Wish("resume"))["said"] == "goes on"
    await until(lambda: len(owner.nodes) == 2 and owner.state() == "counted")
    work = owner.node.status()
    assert (work["rounds"]["counted"], work["tokens"]) == (4, 20), "work before the rest counts"
    owner.nodes[-1].end("all steps are done")
    assert await running == "all steps are done"


async def test_a_node_that_rests_is_gone_before_its_memory_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    node, gone = weakref.ref(owner.nodes.pop()), list[bool]()

    def given_back() -> None:
        gc.collect()
        gone.append(node() is None)

    monkeypatch.setattr(pausable, "_give_back_memory", given_back)
    owner.node.obey(Wish("pause"))
    await until(lambda: bool(gone))
    assert gone == [True]
    owner.node.leave()
    await running


async def test_a_pause_with_a_length_ends_by_itself(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    owner.node.obey(Wish("pause", 0.05))
    await until(lambda: len(owner.nodes) == 2)
    owner.node.leave()
    assert await running


@pytest.mark.parametrize(
    ("seconds", "words"), [(20.0, "goes on in 20 seconds"), (600.0, "goes on in 10 minutes")]
)
async def test_a_pause_says_how_long_it_lasts(tmp_path: Path, seconds: float, words: str) -> None:
    owner = Owner(tmp_path)
    assert owner.node.obey(Wish("pause", seconds))["said"].endswith(f"paused by you; {words}")


async def test_what_was_done_is_kept_while_it_works_and_over_a_pause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pausable, "LOOK_S", 0.01)
    monkeypatch.setattr(pausable, "SAVE_S", 0.0)
    owner = Owner(tmp_path)
    running = await owner.begin()
    await until(lambda: RUN in read_all(tmp_path))  # a kill now would lose nothing
    assert (read_all(tmp_path)[RUN].counted, read_all(tmp_path)[RUN].name) == (2, "first")
    owner.node.obey(Wish("pause", 0.05))
    await until(lambda: len(owner.nodes) == 2)
    assert owner.node.status()["totals"]["run"]["counted"] == 4
    assert owner.node.status()["page"] == "http://run"
    owner.node.leave()
    assert await running
    assert read_all(tmp_path)[RUN].counted == 4


async def test_a_pause_before_the_first_round_rests_at_once(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    await owner.node.start()
    owner.node.obey(Wish("pause"))
    running = asyncio.create_task(owner.node.run())
    await until(lambda: owner.state() == "resting")
    assert owner.happened == ["start", "stop"]
    owner.node.leave()
    await running


@pytest.mark.parametrize("resting", [False, True])
async def test_finish_ends_after_the_round(tmp_path: Path, resting: bool) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    if resting:
        owner.node.obey(Wish("pause"))
        await until(lambda: owner.state() == "resting")
    owner.node.obey(Wish("finish"))
    await running
    assert owner.happened == ["start", "left politely", "stop"]
    assert owner.state() == "ended"


@pytest.mark.parametrize("resting", [False, True])
async def test_stop_ends_at_once(tmp_path: Path, resting: bool) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    if resting:
        owner.node.obey(Wish("pause"))
        await until(lambda: owner.state() == "resting")
    owner.node.obey(Wish("stop"))
    with pytest.raises(StoppedError):
        await running
    assert owner.happened[-1] == "stop"


async def test_outside_its_hours_a_node_is_not_even_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Clock:
        hour = 12

        @classmethod
        def now(cls) -> datetime:
            return datetime(2026, 11, 23, cls.hour)

    monkeypatch.setattr(pausable, "datetime", Clock)
    monkeypatch.setattr(pausable, "LOOK_S", 0.01)
    owner = Owner(tmp_path, Limits(parse_hours("22:00-23:00")))
    running = await owner.begin()
    assert owner.nodes == []
    assert owner.node.obey(Wish("resume"))["said"] == (
        "still rests: outside its hours; goes on mon 22:00"
    )
    Clock.hour = 22
    await until(lambda: owner.state() == "counted")
    Clock.hour = 23
    await until(lambda: owner.state() == "resting")
    assert owner.happened == ["start", "left politely", "stop"]
    owner.node.leave()
    await running


async def test_a_person_at_the_machine_sends_the_node_away_until_the_machine_is_quiet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pausable, "LOOK_S", 0.01)
    owner = Owner(tmp_path, Limits(others=QuietLimits(when_idle=5)))
    running = await owner.begin()
    assert owner.nodes == [], "the person who has typed the command is there"
    assert owner.node.status()["standing"]["reason"] == (
        "you are using this machine; goes on after 5 quiet minutes"
    )
    owner.idle_s = 300.0
    await until(lambda: owner.state() == "counted")
    owner.idle_s = 1.0
    await until(lambda: owner.state() == "resting")
    assert owner.happened == ["start", "left politely", "stop"]
    owner.node.leave()
    await running


async def test_limits_change_while_a_node_works_and_hold_for_the_next_one(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    assert owner.node.obey(Wish("limit"))["said"] == "no limits"
    said = owner.node.obey(Wish("limit", limits={"duty_cycle": 50, "daily_transfer": 10**9}))
    assert said == {"said": "1 GB a day · duty cycle 50 %"}
    assert owner.nodes[0].limited[-1] == (50, 100)
    assert owner.node.status()["limits"] == "1 GB a day · duty cycle 50 %"
    owner.node.obey(Wish("pause"))
    await until(lambda: owner.state() == "resting")
    owner.node.obey(Wish("resume"))
    await until(lambda: len(owner.nodes) == 2)
    assert [limits.duty_cycle for limits in owner.made_with] == [100, 50]
    owner.node.leave()
    await running


async def test_rates_reach_the_node_and_one_that_is_too_low_is_named_with_its_answer(
    tmp_path: Path,
) -> None:
    def judge(limits: Limits, members: int) -> str:
        return "too low" if 0 < limits.download_limit < 50_000 else ""

    owner = Owner(tmp_path, judge=judge)
    running = await owner.begin()

    def said(**limits: int) -> str:
        answer = owner.node.obey(Wish("limit", limits=dict(limits)))
        return str(answer.get("said") or answer["refused"])

    words = "up 20 kB/s · down 30 kB/s; too low"
    assert said(upload_limit=20_000, download_limit=30_000) == words
    assert owner.node.status()["limits"] == words
    assert said(download_limit=0) == "up 20 kB/s"
    assert owner.nodes[0].rates == [(20_000, 30_000), (20_000, 0)]
    assert said(download_limit=19_999).startswith("download_limit: expected 0 or at least 20000")
    owner.node.leave()
    await running


async def test_a_limit_that_makes_a_working_node_rest_does_so_at_once(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    hour = (datetime.now().hour + 12) % 24
    owner.node.obey(Wish("limit", limits={"hours": f"{hour:02}:00-{hour:02}:01"}))
    await until(lambda: owner.state() == "resting")
    owner.node.obey(Wish("limit", limits={"hours": ""}))
    await until(lambda: len(owner.nodes) == 2)
    owner.node.leave()
    await running


@pytest.mark.parametrize(
    "limits", [{"gpu_memory": 50}, {"duty_cycle": 0}, {"speed": 1}, {"hours": "noon"}]
)
async def test_a_limit_that_cannot_be_kept_is_refused_and_the_others_stay(
    tmp_path: Path, limits: dict[str, str | int | bool]
) -> None:
    owner = Owner(tmp_path, Limits(duty_cycle=70))
    running = await owner.begin()
    assert "expected" in owner.node.obey(Wish("limit", limits={"when_idle": 9} | limits))["refused"]
    assert owner.node.obey(Wish("limit"))["said"] == "duty cycle 70 %"
    assert not owner.node.resting_reason()
    owner.node.leave()
    await running


async def test_another_terminal_tells_it_over_a_socket_that_is_the_owner_s_alone(
    tmp_path: Path,
) -> None:
    long = tmp_path / ("x" * 100)
    long.mkdir()
    owner = Owner(tmp_path)
    running = await owner.begin()
    control = ControlSocket(long, owner.node)
    await control.start()
    mode = (long / "control").stat().st_mode
    assert (stat.S_ISSOCK(mode), stat.S_IMODE(mode)) == (True, 0o600)
    told = await asyncio.to_thread(ask, long, Wish("me"))
    assert told["status"]["round"] == 7
    assert "error" in await asyncio.to_thread(ask, long, Wish("dance"))
    await asyncio.to_thread(ask, long, Wish("finish"))
    await running
    await control.stop()
    with pytest.raises(UnavailableError, match="no node answers"):
        ask(long, Wish("me"))


async def test_nonsense_on_the_socket_is_answered_and_changes_nothing(tmp_path: Path) -> None:
    owner = Owner(tmp_path)
    running = await owner.begin()
    control = ControlSocket(tmp_path, owner.node)
    await control.start()
    for line in (b"{}\n", b"\xff\n", b'{"command": 1}\n', b'{"command":"stop","more":1}\n'):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "control"))
        writer.write(line)
        assert b"expected a wish" in await reader.readline()
        writer.close()
    assert not running.done()
    await control.stop()
    owner.node.leave()
    await running


async def test_the_socket_of_a_killed_process_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(tmp_path / "control"))
    control = ControlSocket(tmp_path, Owner(tmp_path).node)
    await control.start()
    assert "status" in await asyncio.to_thread(ask, tmp_path, Wish("me"))
    await control.stop()
