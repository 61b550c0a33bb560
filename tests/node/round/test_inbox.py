"""Each message of the coordinator reaches the part that waits for it, and the agenda hears of those
that change what comes next.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from node.control.members import MemberList
from node.round import events
from node.round.inbox import Inbox
from node.round.own_payloads import OwnPayloads
from protocol import wire_pb2 as wire
from protocol.codec.chain import Restart, sign_entry
from protocol.codec.commits import Commit, Entry, genesis_digest, sign_commit
from protocol.ids import sha256
from tests.node.test_trainer import KEY, OWN, RUN, Stage
from tests.support.state_requests import NoStateRequests
from tests.support.tiny import tiny_corpus


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture
def stage(corpus: Path) -> Stage:
    return Stage(corpus, overlap=1)


class Told:
    """An inbox over a stage's parts, and what its agenda would hear."""

    def __init__(self, stage: Stage) -> None:
        self.events: list[events.Event] = []
        self.inbox = Inbox(stage.context, OwnPayloads(stage.context), self.events.append)

    def receive(self, **kind: Any) -> list[events.Event]:
        self.inbox.received(wire.CoordinatorMessage(**kind))
        return self.events


OPENED = wire.RoundOpened(round=3)
RESYNC = wire.Resync(round=2, reason="differs", number=1)


@pytest.mark.parametrize(
    ("kind", "message", "event"),
    [
        ("opened", OPENED, events.Opened(OPENED)),
        ("resync", RESYNC, events.ResyncOrdered(RESYNC)),
        ("finished", wire.RunFinished(reason="done"), events.Finished("done")),
        ("skipped", wire.RoundSkipped(round=0), events.Decided()),
    ],
)
def test_the_agenda_hears_of_a_message(
    stage: Stage, kind: str, message: Any, event: events.Event
) -> None:
    assert Told(stage).receive(**{kind: message}) == [event]


def test_a_commit_and_a_skip_reach_the_decision_log(stage: Stage) -> None:
    told = Told(stage)
    entry = Entry(OWN, sha256(b"payload"), 100, 1, 1)
    signed = sign_commit(Commit(RUN, 0, 0, (entry,), 1, 2, genesis_digest(RUN)), KEY)
    committed = wire.Committed(body=signed.body, signature=signed.signature)
    told.receive(committed=wire.RoundCommitted(commit=committed, holders=[wire.Holders()]))
    told.receive(skipped=wire.RoundSkipped(round=1))
    assert stage.decisions.decided_round == 1
    assert told.events == [events.Decided(), events.Decided()]


def test_an_eviction_is_noted_with_its_reason(stage: Stage) -> None:
    assert Told(stage).receive(evicted=wire.Evicted(reason="silent for 6 s")) == []
    assert stage.status.note == "removed by the coordinator: silent for 6 s; joining again"


def test_a_message_of_a_newer_coordinator_changes_nothing(stage: Stage) -> None:
    assert Told(stage).receive() == []


def test_a_welcome_tells_the_newest_decision_before_the_agenda_hears_of_it(stage: Stage) -> None:
    decided = list[int]()
    repeated: list[bool] = []
    context = replace(stage.context, state_requests=StateRequestsThatTell(repeated))
    inbox = Inbox(
        context, OwnPayloads(context), lambda event: decided.append(stage.decisions.decided_round)
    )
    inbox.welcomed(wire.Welcome(decided_round=7))
    assert decided == [7]
    assert repeated == [True], "what the lost session may have taken along is said again"


class StateRequestsThatTell(NoStateRequests):
    def __init__(self, repeated: list[bool]) -> None:
        self._repeated = repeated

    def repeat(self) -> None:
        self._repeated.append(True)


def test_members_and_relays_reach_the_swarm(stage: Stage) -> None:
    members = MemberList()
    members.update(wire.Members(members=[wire.Member(peer_id=OWN, addresses=["h:1"])]))
    Told(stage).inbox.members_changed(members)
    assert stage.swarm.told == [{OWN: ("h:1",)}]


def test_a_node_that_waits_for_a_round_hears_of_a_restart_from_a_checkpoint(stage: Stage) -> None:
    restart = Restart(RUN, 0, sha256(b"a checkpoint"), 7, genesis_digest(RUN))
    signed = sign_entry(restart, KEY)
    entry = wire.ChainEntry(body=signed.body, signature=signed.signature)
    assert Told(stage).receive(chained=entry) == [events.Decided()]
    assert stage.context.decisions.restart == restart
