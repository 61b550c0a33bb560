"""Promises of the summer's role beside a shelf of parts: what it answers, and what ends it."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from node.sums.summer import SAMPLES_MAX, Summer, questions_of
from protocol import wire_pb2 as wire
from protocol.errors import RemoteProtocolError, UnavailableError
from protocol.ids import Digest, PeerId
from protocol.limits import MEMBERS_MAX
from protocol.schedule import float32_bits
from protocol.sums.plan import SumPlan
from tests.node.gossip.crowd import (
    INFO,
    RANGES,
    ROUND,
    SHAPE,
    parts_of,
    plan_of,
    question,
    root_of,
    sum_of,
)
from tests.node.links.net import key_of, peer_of
from tests.support.waiting import until

AUTHORS = {0: root_of(0), 1: root_of(1)}


@dataclass
class Shelf:
    """Parts of two authors, given once `ready` is set; the round is open until it is not."""

    ready: asyncio.Event = field(default_factory=asyncio.Event)
    plans: dict[int, SumPlan] = field(
        default_factory=lambda: {ROUND: plan_of((2,), (2,), (2,), (2,))}
    )
    kept: list[bytes] = field(default_factory=list)
    asked: list[tuple[int, dict[PeerId, Digest]]] = field(default_factory=list)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        self.tasks.append(asyncio.create_task(work))
        return self.tasks[-1]

    def plan(self, round: int) -> SumPlan | None:
        return self.plans.get(round)

    async def collect(
        self, round: int, number: int, roots: Mapping[PeerId, Digest]
    ) -> dict[PeerId, bytes]:
        self.asked.append((number, dict(roots)))
        await self.ready.wait()
        if round not in self.plans:
            raise UnavailableError("decided")
        by_peer = {peer_of(author): parts_of(author)[number] for author in AUTHORS}
        return {peer: by_peer[peer] for peer in roots}

    async def keep_result(self, round: int, result: bytes) -> None:
        self.kept.append(result)


@dataclass
class Stage:
    shelf: Shelf
    summer: Summer
    sent: list[wire.NodeMessage]

    @property
    def said(self) -> list[tuple[int, bytes]]:
        return [(each.summed.range, each.summed.digest) for each in self.sent]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    shelf, sent = Shelf(), list[wire.NodeMessage]()
    yield Stage(shelf, Summer(INFO, key_of(2), SHAPE, shelf, sent.append), sent)
    for task in shelf.tasks:
        task.cancel()
    await asyncio.gather(*shelf.tasks, return_exceptions=True)


def expected(number: int, *silent: int) -> Digest:
    speaking = {each: parts_of(each)[number] for each in AUTHORS if each not in silent}
    return sum_of(number, speaking, silent=silent).digest


async def test_a_sum_is_said_once_its_parts_are_here_and_its_bytes_are_kept(stage: Stage) -> None:
    stage.summer.asked(question({0: (), 3: (1,)}, AUTHORS))
    await until(lambda: len(stage.shelf.asked) == 2)
    assert [(number, len(roots)) for number, roots in stage.shelf.asked] == [(0, 2), (3, 1)]
    assert not stage.sent
    stage.shelf.ready.set()
    await until(lambda: len(stage.sent) == 2)
    assert sorted(stage.said) == [(0, expected(0)), (3, expected(3, 1))]
    assert len(stage.shelf.kept) == 2


async def test_an_equal_question_is_answered_again_without_adding(stage: Stage) -> None:
    stage.shelf.ready.set()
    stage.summer.asked(question({0: ()}, AUTHORS))
    stage.summer.asked(question({0: ()}, AUTHORS))  # while it is being added: one answer
    await until(lambda: stage.sent)
    stage.summer.asked(question({0: ()}, AUTHORS))
    assert stage.said == [(0, expected(0))] * 2
    assert len(stage.shelf.kept) == 1


async def test_another_question_of_a_range_takes_the_place_of_the_first(stage: Stage) -> None:
    stage.summer.asked(question({0: (), 1: ()}, AUTHORS))
    await until(lambda: len(stage.shelf.asked) == 2)
    stage.summer.asked(question({0: (1,)}, AUTHORS))
    stage.shelf.ready.set()
    await until(lambda: len(stage.sent) == 2)
    assert sorted(stage.said) == [(0, expected(0, 1)), (1, expected(1))]


async def test_what_was_said_of_undecided_rounds_is_repeated(stage: Stage) -> None:
    stage.shelf.ready.set()
    stage.summer.asked(question({0: (), 1: ()}, AUTHORS))
    await until(lambda: len(stage.sent) == 2)
    stage.summer.repeat()
    assert sorted(stage.said) == [(0, expected(0))] * 2 + [(1, expected(1))] * 2
    stage.summer.decided(ROUND - 1)
    stage.summer.repeat()
    assert len(stage.sent) == 6
    stage.summer.decided(ROUND)
    stage.summer.repeat()
    assert len(stage.sent) == 6


async def test_a_decided_round_ends_its_questions(stage: Stage) -> None:
    stage.summer.asked(question({0: ()}, AUTHORS))
    await until(lambda: stage.shelf.asked)
    stage.summer.decided(ROUND)
    await until(stage.shelf.tasks[0].cancelled)
    assert not stage.sent
    stage.shelf.plans.clear()
    stage.summer.asked(question({0: ()}, AUTHORS))
    assert len(stage.shelf.tasks) == 1, "a question that is late is none"


async def test_a_round_that_the_swarm_has_forgotten_is_no_failure(stage: Stage) -> None:
    stage.summer.asked(question({0: ()}, AUTHORS))
    await until(lambda: stage.shelf.asked)
    stage.shelf.plans.clear()
    stage.shelf.ready.set()
    await stage.shelf.tasks[0]
    assert not stage.sent


async def test_an_author_that_says_nothing_is_named(
    stage: Stage, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def one_is_empty(
        round: int, number: int, roots: Mapping[PeerId, Digest]
    ) -> dict[PeerId, bytes]:
        return {peer_of(0): parts_of(0)[number], peer_of(1): b""}

    monkeypatch.setattr(stage.shelf, "collect", one_is_empty)
    with caplog.at_level(logging.WARNING):
        stage.summer.asked(question({2: ()}, AUTHORS))
        await until(lambda: stage.sent)
    assert stage.said == [(2, expected(2, 1))]
    assert vars(caplog.records[0])["peer"] == peer_of(1)[:8]


def _broken(**fields: Any) -> wire.SumsAsked:
    asked = question({0: ()}, AUTHORS)
    for name, value in fields.items():
        if isinstance(value, list):
            asked.ClearField(name)  # type: ignore[arg-type]
            getattr(asked, name).extend(value)
        else:
            setattr(asked, name, value)
    return asked


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (_broken(authors=[]), "sums of 1.."),
        (_broken(authors=list(question({}, AUTHORS).authors)[::-1]), "sorted and once each"),
        (_broken(authors=[*question({}, AUTHORS).authors] * 2), "sorted and once each"),
        (_broken(authors=[wire.SumAuthor(author="x", root=bytes(32), samples=1)]), "expected"),
        (
            _broken(authors=[wire.SumAuthor(author=peer_of(0), root=b"", samples=1)]),
            "digest of 32 bytes",
        ),
        (
            _broken(
                authors=[wire.SumAuthor(author=peer_of(0), root=bytes(32), samples=SAMPLES_MAX + 1)]
            ),
            "samples",
        ),
        (_broken(ranges=[wire.RangeAsked(range=RANGES)]), "a range below 4"),
        (_broken(ranges=[wire.RangeAsked(range=0, silent=[2])]), "a range below 4"),
        (_broken(ranges=[wire.RangeAsked(range=0, silent=[1, 0])]), "sorted and once each"),
        (_broken(ranges=[wire.RangeAsked()] * 5), "at most 4 ranges"),
        (_broken(learning_rate_bits=0x7FC00000), "a learning rate of at least 0, got nan"),
        (_broken(learning_rate_bits=float32_bits(-1)), "a learning rate of at least 0"),
    ],
)
async def test_a_question_out_of_bounds_is_refused(
    stage: Stage, asked: wire.SumsAsked, why: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        stage.summer.asked(asked)
    assert not stage.shelf.tasks


@given(st.binary(max_size=200), st.integers(1, 64))
def test_any_message_is_a_question_in_bounds_or_refused(blob: bytes, ranges: int) -> None:
    message = wire.SumsAsked()
    try:
        message.ParseFromString(blob)
        found = questions_of(INFO, message, ranges)
    except (DecodeError, RemoteProtocolError):
        return
    assert len(found) <= ranges
    for asked in found:
        assert 1 <= len(asked.authors) <= MEMBERS_MAX
        assert 0 <= asked.number < ranges
        assert set(asked.silent) <= set(range(len(asked.authors)))
