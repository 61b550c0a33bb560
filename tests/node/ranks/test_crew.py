"""Rank 0 names the rank at fault, and waits for nothing for ever. The line is a script."""

from collections.abc import Callable
from typing import Any, cast

import pytest
import torch

from node.ranks import crew as module
from node.ranks import line as line_module
from node.ranks.crew import Crew
from node.ranks.line import RankLine, RankPatience
from node.ranks.orders import (
    Hello,
    Leave,
    Limit,
    Load,
    Order,
    OrderAnswer,
    Regroup,
    decode_order,
    encode,
)
from node.ranks.place import RankPlace
from protocol.errors import DeviceError, UnavailableError

HELLOS = [Hello("", {}, f"host-{rank}", "a CPU", "cpu") for rank in range(3)]

Script = Callable[[Order, int], OrderAnswer | None]
"""A rank's answer to an order; None: none comes."""


class ScriptedLine:
    """A line at whose other end ranks answer by a script, on a clock of its own."""

    def __init__(self, script: Script) -> None:
        self.place = RankPlace(0, 3)
        self.orders: list[Order] = []
        self.now_s = 0.0
        self.silent = dict[int, float]()
        self._script, self._words = script, dict[str, bytes]()

    def say(self, key: str, words: bytes) -> None:
        kind, number = key.split("/")
        if kind == "order":
            self.orders.append(decode_order(words))
        for rank in (1, 2):
            if answer := self._script(self.orders[-1], rank):
                self._words[f"answer/{number}/{rank}"] = encode(answer)

    def hear(self, *keys: str) -> list[bytes] | None:
        if self._words.keys() >= {*keys}:
            return [self._words[key] for key in keys]
        self.now_s += 1
        return None

    def has(self, key: str) -> bool:
        return key in self._words

    def forget(self, *keys: str) -> None:
        for key in keys:
            self._words.pop(key, None)

    def expect_signs(self) -> None:
        pass

    def silent_s(self, rank: int) -> float:
        return self.silent.get(rank, 0.0) and self.now_s

    def close(self, *, whole: bool = True) -> None:
        self.whole = whole


def crew_of(
    monkeypatch: pytest.MonkeyPatch, script: Script, ended: Callable[[], dict[int, str]] = dict
) -> tuple[Crew, ScriptedLine]:
    line = ScriptedLine(script)

    class Time:
        @staticmethod
        def monotonic() -> float:
            return line.now_s

        @staticmethod
        def sleep(seconds: float) -> None:
            line.now_s += seconds

    monkeypatch.setattr(module, "time", Time)
    monkeypatch.setattr(line_module, "time", Time)
    patience = RankPatience(silence_s=10.0, order_s=100.0)
    made = Crew(cast(RankLine, line), torch.device("cpu"), HELLOS, patience, ended)
    return made, line


def obedient(_: Order, __: int) -> OrderAnswer:
    return OrderAnswer(memory_bytes=5)


def only_rank_1(_: Order, rank: int) -> OrderAnswer | None:
    return OrderAnswer() if rank == 1 else None


def test_an_order_is_done_when_all_have_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, line = crew_of(monkeypatch, obedient)
    crew.limit(50)
    assert line.orders == [Limit(50)]
    assert [each["memory_bytes"] for each in crew.document()[1:]] == [5, 5]
    crew.close()
    assert line.orders[1:] == [Leave()]
    assert line.whole


def test_a_rank_that_hangs_is_named_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, line = crew_of(monkeypatch, only_rank_1)
    with pytest.raises(DeviceError, match=r"^rank 2 \(a CPU, on host-2\) hangs: .* 'limit' in 100"):
        crew.limit(50)
    assert 100 < line.now_s < 103


def test_a_rank_that_is_silent_is_named_long_before(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, line = crew_of(monkeypatch, only_rank_1)
    line.silent[2] = 1.0
    with pytest.raises(DeviceError, match=r"^rank 2 .* gave no sign of life for 11 s: its process"):
        crew.limit(50)
    assert line.now_s < 12


def test_a_process_that_ended_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = {2: "was killed by SIGKILL"}
    crew, line = crew_of(monkeypatch, only_rank_1, lambda: gone)
    with pytest.raises(DeviceError, match=r"^rank 2 \(a CPU, on host-2\) was killed by SIGKILL$"):
        crew.limit(50)
    assert line.now_s < 2


def test_a_rank_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(_: Order, rank: int) -> OrderAnswer:
        return OrderAnswer(error="ValueError: five" if rank == 1 else "")

    crew, _ = crew_of(monkeypatch, failing)
    with pytest.raises(DeviceError, match=r"^rank 1 .* failed: ValueError: five$"):
        crew.limit(50)


def test_a_rank_that_lost_another_one_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 was in an exchange with rank 2, which is stopped."""

    def losing(_: Order, rank: int) -> OrderAnswer | None:
        return OrderAnswer(lost="connection closed") if rank == 1 else None

    crew, line = crew_of(monkeypatch, losing)
    line.silent[2] = 1.0
    with pytest.raises(DeviceError, match=r"^rank 2 .* gave no sign of life"):
        crew.limit(50)


def test_where_nobody_is_at_fault_the_exchange_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def losing(_: Order, rank: int) -> OrderAnswer:
        return OrderAnswer(lost="connection closed" if rank == 1 else "")

    crew, line = crew_of(monkeypatch, losing)
    with pytest.raises(DeviceError, match=r"^rank 1 .* lost the others: connection closed$"):
        crew.limit(50)
    assert line.now_s < 15


def test_a_fault_is_final(monkeypatch: pytest.MonkeyPatch) -> None:
    hangs = [True]

    def again(order: Order, rank: int) -> OrderAnswer | None:
        return only_rank_1(order, rank) if hangs else obedient(order, rank)

    crew, line = crew_of(monkeypatch, again)
    with pytest.raises(DeviceError, match="hangs"):
        crew.limit(50)
    hangs.clear()
    with pytest.raises(DeviceError, match=r"^rank 2 .* hangs"):
        crew.limit(60)
    crew.rest()
    assert line.orders == [Limit(50)]
    crew.close()
    assert not line.whole, "an exchange may still hang in the group"


def test_a_store_that_is_gone_is_a_failed_device_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(_: Order, __: int) -> OrderAnswer:
        raise UnavailableError("rank 0 lost the store of the ranks: it is gone")

    crew, _ = crew_of(monkeypatch, gone)
    with pytest.raises(DeviceError, match="lost the store"):
        crew.limit(50)


def test_memory_that_rank_0_lacks_is_told_once_the_others_are_done(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew, line = crew_of(monkeypatch, obedient)

    def short() -> Any:
        raise torch.OutOfMemoryError("here")

    with pytest.raises(torch.OutOfMemoryError, match="here"):
        crew._give(Load(), short)
    crew.limit(50)
    assert line._words == {}, "no answer is left over"


def test_memory_that_another_rank_lacks_is_told_with_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def short(_: Order, rank: int) -> OrderAnswer:
        return OrderAnswer(short="no room" if rank == 2 else "")

    crew, _ = crew_of(monkeypatch, short)
    with pytest.raises(torch.OutOfMemoryError, match=r"^rank 2 .*: no room$"):
        crew.limit(50)


class Hanging:
    """An exchange for which another rank is waited for."""

    def is_completed(self) -> bool:
        return False


def test_a_pass_ends_at_once_for_all_where_a_rank_has_no_memory_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Rank 2 runs out of memory; rank 1 and rank 0 wait for it in an exchange."""
    told = list[Order]()

    def script(order: Order, rank: int) -> OrderAnswer | None:
        if isinstance(order, Regroup):
            return OrderAnswer()
        told.append(order)
        if rank == 2:
            return OrderAnswer(short="no room")
        is_broken_off = len(told) > 2  # rank 0 has said something else about the order
        return OrderAnswer(lost="rank 0 has broken it off") if is_broken_off else None

    crew, line = crew_of(monkeypatch, script)
    with pytest.raises(torch.OutOfMemoryError, match=r"^rank 2 \(a CPU, on host-2\): no room$"):
        crew._give(Load(), lambda: crew._wait([Hanging()]))
    assert line.now_s < 5
    assert line.orders == [Load(), Regroup()]
    assert not crew.fault
    assert line._words == {}, "no answer is left over"


def test_a_rank_that_is_silent_in_the_middle_of_a_pass_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    crew, line = crew_of(monkeypatch, only_rank_1)
    line.silent[2] = 1.0
    with pytest.raises(
        DeviceError, match=r"^rank 2 .* gave no sign of life for 1[01] s: its process"
    ):
        crew._give(Load(), lambda: crew._wait([Hanging()]))
    assert line.now_s < 13


def test_ranks_that_are_told_to_leave_take_no_more_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    crew, _ = crew_of(monkeypatch, obedient)
    crew.close()
    with pytest.raises(DeviceError, match="told to leave"):
        crew.limit(50)
