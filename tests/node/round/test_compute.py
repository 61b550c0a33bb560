"""A round makes the passes that fit, and no more than its duty cycle allows; one that only mixes
asks nothing of the model.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from node.model.passes import RoundWork
from node.model.queue import AtOnce
from node.round.compute import RoundPasses, Settling
from node.round.context import RoundContext
from node.status import NodeStatus
from node.system.duty_cycle import DutyKeeper
from protocol import wire_pb2 as wire
from tests.support.card import Card

REAL_SLEEP = asyncio.sleep


class Untouched:
    """A replica that must not be asked for a pass."""

    def begin(self, *_: Any) -> Any:
        raise AssertionError("expected no pass in a round that only mixes")


async def train_round(context: RoundContext, opened: wire.RoundOpened, line: Any) -> Any:
    """A round as the trainer makes it, with its `line` of decisions."""
    passes = RoundPasses(context, opened)
    if await passes.begin(None):
        async with Settling(context) as settling:
            while await passes.make(behind=settling.is_under_way):
                if not settling.is_under_way and line.may_settle():
                    await settling.begin(line.settle())
                await settling.look()
    return await passes.work()


async def test_in_a_round_that_only_mixes_no_pass_is_made_and_there_is_a_payload() -> None:
    context = cast(RoundContext, SimpleNamespace(replica=Untouched(), duty=DutyKeeper()))
    opened = wire.RoundOpened(round=3, only_mixes=True)
    work = await train_round(context, opened, None)
    assert work is not None, "without work a node announces no payload"
    assert (work.samples, work.loss_nats_per_token, work.tokens) == (0, 0.0, 0)


PASS_MS = 100


class Machine:
    """A node whose passes of two samples take PASS_MS of virtual time, and nothing else takes any;
    `asked` holds the samples made whenever it was asked whether it may settle.
    """

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, percent: int, *, moves: bool = False
    ) -> None:
        self.now_ms, self.samples, self.began = 0.0, 0, 0
        self.asked: list[int] = []
        self.said: set[str] = set()

        async def sleep(seconds: float) -> None:
            self.now_ms += 1000 * seconds
            self.said.add(self.context.status.phase)

        async def in_thread(call: Any, *args: Any) -> Any:
            return call(*args)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(asyncio, "to_thread", in_thread)
        spec = SimpleNamespace(
            data=SimpleNamespace(sequence_length=8, seed=0),
            seed=0,
            algorithm=SimpleNamespace(moves=moves),
        )
        self.context = cast(
            RoundContext,
            SimpleNamespace(
                replica=self,
                duty=DutyKeeper(percent, lambda: self.now_ms),
                info=SimpleNamespace(spec=spec),
                client=SimpleNamespace(now_ms=lambda: int(self.now_ms)),
                corpus=SimpleNamespace(expect=lambda *_, **__: None),
                status=NodeStatus("0" * 32, "test"),
                decisions=SimpleNamespace(next_round=0),
                state_requests=SimpleNamespace(note_passes=lambda *_, **__: None),
            ),
        )
        self.trainee = SimpleNamespace(micro_batch_max=2, queue=AtOnce())
        self.applies_beside = False

    def begin(self, *_: Any) -> Any:
        self.began += 1
        self.samples = 0
        return self

    def next(self) -> bool:
        self.now_ms += PASS_MS
        self.samples += 2
        return True

    def finish(self) -> RoundWork:
        return RoundWork(self.samples, 1.0, 8 * self.samples)

    def accumulate(self) -> None:
        pass

    def may_settle(self) -> bool:
        self.asked.append(self.samples)
        return False

    async def settle(self) -> None:
        raise AssertionError("expected nothing to settle between passes")

    async def round(self, bell_ms: int) -> int:
        """Samples of a round that is opened now."""
        opened = wire.RoundOpened(bell_ms=bell_ms, shares=[wire.Share(first=0, count=100)])
        work = await train_round(self.context, opened, self)
        return work.samples if work else 0


@pytest.mark.parametrize(("percent", "samples"), [(100, 20), (50, 10), (30, 6)])
async def test_a_duty_cycle_makes_fewer_passes_and_the_bell_is_met(
    monkeypatch: pytest.MonkeyPatch, percent: int, samples: int
) -> None:
    machine = Machine(monkeypatch, percent)
    assert await machine.round(bell_ms=1000) == samples
    assert machine.now_ms <= 1000
    passes = machine.context.status.work.passes
    assert (passes.samples, passes.quickest_s, passes.made) == (2, PASS_MS / 1000, samples // 2)
    resting = {f"rests in round 0: computes {percent} % of the time"}
    assert machine.said == (resting if percent < 100 else set())
    assert machine.context.status.phase == "starting", "the phase of before is back"
    assert len(machine.asked) >= samples // 2 - 1, "the round in front is settled in between"


class WithCard(Machine):
    """The same with a card, which makes passes while the host goes on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, percent: int) -> None:
        super().__init__(monkeypatch, percent)
        self.card, self.begins = Card(), list[float]()
        self.trainee.queue = self.card.queue()
        self.stood: list[int] = []

        async def sleep(seconds: float) -> None:
            self.now_ms += 1000 * seconds
            await REAL_SLEEP(0)

        async def in_thread(call: Any, *args: Any) -> Any:
            await REAL_SLEEP(0)
            return call(*args)

        monkeypatch.setattr(asyncio, "sleep", sleep)
        monkeypatch.setattr(asyncio, "to_thread", in_thread)

    @property  # type: ignore[override]
    def now_ms(self) -> float:
        return 1000 * self.card.now_s if "card" in vars(self) else 0.0

    @now_ms.setter
    def now_ms(self, now_ms: float) -> None:
        if "card" in vars(self):
            self.card.now_s = now_ms / 1000

    def next(self) -> bool:
        with self.trainee.queue.given(2):
            self.begins.append(1000 * max(self.card.now_s, self.card.busy_until_s))
            self.card.work(PASS_MS / 1000)
        self.samples += 2
        return True

    def stand_at(self) -> None:
        self.stood.append(self.samples)


@pytest.mark.parametrize("bell_ms", [990, 1010, 1040])
async def test_a_card_begins_no_pass_after_the_bell_though_two_are_queued(
    monkeypatch: pytest.MonkeyPatch, bell_ms: int
) -> None:
    machine = WithCard(monkeypatch, 100)
    assert await machine.round(bell_ms) == 2 * -(-bell_ms // PASS_MS)
    assert max(machine.begins) < bell_ms
    assert machine.card.idle_s == 0.0
    passes = machine.context.status.work.passes
    assert (passes.samples, passes.quickest_s) == (2, pytest.approx(PASS_MS / 1000))


async def test_a_card_rests_too(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = WithCard(monkeypatch, 50)
    assert await machine.round(bell_ms=1000) == 10
    assert machine.card.busy_until_s <= 1.0


@pytest.mark.parametrize("beside", [False, True])
async def test_a_commit_is_applied_beside_passes_where_they_leave_its_parameters_alone(
    monkeypatch: pytest.MonkeyPatch, *, beside: bool
) -> None:
    machine = WithCard(monkeypatch, 100)
    machine.applies_beside, settled = beside, asyncio.Event()

    def may_settle() -> bool:
        Machine.may_settle(machine)
        return len(machine.asked) == 2

    async def settle() -> None:
        if beside:
            await settled.wait()
        machine.context.decisions.next_round = 3

    def next_pass() -> bool:
        if machine.samples == 8:
            settled.set()
        return WithCard.next(machine)

    for name, call in (("next", next_pass), ("may_settle", may_settle), ("settle", settle)):
        monkeypatch.setattr(machine, name, call)
    opened = wire.RoundOpened(round=3, bell_ms=1000, shares=[wire.Share(first=0, count=100)])
    await train_round(machine.context, opened, machine)
    assert machine.asked[:2] == [2, 4]
    (at,) = machine.stood
    assert at > 8 if beside else at == 4
    assert machine.context.status.work.samples_late == at


async def test_a_round_does_not_end_before_the_commit_beside_it_is_applied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = WithCard(monkeypatch, 100)
    machine.applies_beside, rung = True, asyncio.Event()

    async def settle() -> None:
        await rung.wait()

    monkeypatch.setattr(machine, "may_settle", lambda: True)
    monkeypatch.setattr(machine, "settle", settle)

    async def round_() -> None:
        opened = wire.RoundOpened(round=3, bell_ms=300, shares=[wire.Share(first=0, count=100)])
        await train_round(machine.context, opened, machine)
        assert machine.stood == [machine.samples]

    task = asyncio.ensure_future(round_())
    while machine.now_ms < 200:
        await REAL_SLEEP(0)
    assert not task.done()
    rung.set()
    await task


@pytest.mark.parametrize("moves", [False, True])
async def test_passes_are_noted_whatever_they_are_for(
    monkeypatch: pytest.MonkeyPatch, *, moves: bool
) -> None:
    machine = Machine(monkeypatch, 100, moves=moves)
    await machine.round(bell_ms=500)
    passes = machine.context.status.work.passes
    assert (passes.samples, passes.quickest_s, passes.made) == (2, PASS_MS / 1000, 5)


async def test_over_many_rounds_the_work_stays_within_the_duty_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine, samples = Machine(monkeypatch, 10), 0
    for number in range(20):
        bell_ms = 150 * (number + 1)
        samples += await machine.round(bell_ms)
        assert machine.now_ms <= bell_ms + PASS_MS
        machine.now_ms = max(machine.now_ms, bell_ms)
    assert samples // 2 * PASS_MS <= 0.1 * machine.now_ms + PASS_MS
    assert samples >= 4
    assert machine.began == samples // 2, "a round without a pass does not touch the model"
    assert machine.context.status.work.rounds_trained == machine.began
