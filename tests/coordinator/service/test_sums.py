"""Summers over the wire: what they may say, what they are told, and a round of scripted ones."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coordinator.machine.events.acts import Appoint
from coordinator.machine.events.effects import Assignment, OpenRound, SumsAsked
from coordinator.machine.events.inputs import Heartbeat, HeldParts, PartsHeld, Summed
from coordinator.service import coordinator_messages, node_messages
from lockstep.audit.sums.signatures import signed_sums
from lockstep.audit.work.published import evidence_in
from protocol import wire_pb2 as wire
from protocol.clock import Instants
from protocol.codec.commits import with_author_list
from protocol.errors import RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId, peer_id, sha256
from protocol.limits import MEMBERS_MAX, PAYLOAD_BYTES_LIMIT
from protocol.runfile import RunSpec
from protocol.sums.asked import Question, SumAuthor, sign_sum
from protocol.sums.plan import SumPlan
from protocol.sums.receipts import receipt_name
from protocol.sums.signed import WrongSum, wrong_sum_bytes
from tests.coordinator.client import ScriptedNode, node_key, node_of, opened, quiet_spec, running
from tests.coordinator.machine.driver import RUN, A, B, C, of_kind, payload_digest
from tests.coordinator.machine.summing import SummingDriver

RESULT = sha256(b"result")


def parts(*held: wire.HeldParts, round: int = 3) -> wire.NodeMessage:
    return wire.NodeMessage(parts=wire.PartsHeld(round=round, held=held))


def test_receipts_for_parts_become_an_event() -> None:
    said = parts(
        wire.HeldParts(ranges=2**64 - 1, payloads=[2**64 - 1, 5]),
        wire.HeldParts(ranges=1, payloads=[0]),
    )
    every = 2**64 - 1
    held = HeldParts(every, every), HeldParts(5, every), HeldParts(0, 1)
    assert node_messages.event_of(A, said) == PartsHeld(A, 3, held)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (parts(round=-1), "a round of at least 0, got -1"),
        (parts(wire.HeldParts(payloads=[1, 1])), "each once, got 2 of 1"),
        (parts(*[wire.HeldParts(payloads=[1])] * 2), "each once, got 2 of 1 in 2 receipts"),
        (parts(*[wire.HeldParts(ranges=1)] * 9), "got 0 of 0 in 9 receipts"),
        (parts(wire.HeldParts(payloads=range(MEMBERS_MAX + 1))), "expected at most 4096"),
    ],
)
def test_receipts_for_parts_out_of_bounds_end_the_session(
    message: wire.NodeMessage, words: str
) -> None:
    with pytest.raises(RemoteProtocolError, match=words):
        node_messages.event_of(A, message)


def asked_driver() -> tuple[SummingDriver, list[tuple[PeerId, Question]], dict[PeerId, Any]]:
    """A run of three members with keys, whose summers are asked; and what."""
    keys = {peer_id(public_bytes(node_key(number))): node_key(number) for number in (1, 2, 3)}
    members = sorted(keys)
    driver = SummingDriver(*members)
    for each in members:
        driver.announce(each, 0)
    return driver, driver.asks(driver.spread(0, members)), keys


def word(question: Question, key: Any, **changes: Any) -> wire.Summed:
    fields = {
        "round": question.round,
        "range": question.number,
        "digest": RESULT,
        "result_bytes": 9,
        "public_key": public_bytes(key),
        "signature": sign_sum(question, RESULT, key),
    }
    return wire.Summed(**(fields | changes))


def test_a_signed_sum_becomes_an_event_with_its_evidence() -> None:
    driver, asked, keys = asked_driver()
    who, question = asked[0]
    said = word(question, keys[who])
    assert node_messages.summed(who, said, driver.machine) == Summed(
        who,
        0,
        question.number,
        RESULT,
        9,
        question.learning_rate_bits,
        said.public_key,
        said.signature,
    )


def test_a_sum_under_another_question_shows_that_its_sender_is_alive() -> None:
    driver, asked, keys = asked_driver()
    who, question = asked[0]
    for changes in (
        {"signature": bytes(64)},
        {"digest": sha256(b"x")},
        {"range": 99},
        {"round": 7},
    ):
        said = word(question, keys[who], **changes)
        assert node_messages.summed(who, said, driver.machine) == Heartbeat(who)


def test_a_sum_that_somebody_else_has_signed_or_out_of_bounds_ends_the_session() -> None:
    driver, asked, keys = asked_driver()
    who, question = asked[0]
    other = next(each for each in keys if each != who)
    for changes, words in (
        ({"round": -1}, "a round of at least 0"),
        ({"digest": b"d"}, "a digest of 32 bytes"),
        ({"result_bytes": 0}, "a result of 1.."),
        ({"result_bytes": PAYLOAD_BYTES_LIMIT + 1}, "a result of 1.."),
        ({"public_key": b"k"}, "signed by its sender"),
        ({"public_key": public_bytes(keys[other])}, "signed by its sender"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            node_messages.summed(who, word(question, keys[who], **changes), driver.machine)


def test_an_opening_tells_the_plan_to_members_and_relays() -> None:
    plan = ((A, B), (C, B), (A, C))
    assignment = Assignment(A, (), False, "")
    start = OpenRound(7, 6, Instants(1, 2, 3, 4), 11, 12, (assignment,), plan=plan)
    told = coordinator_messages.opened_message(start, assignment).opened
    relays = coordinator_messages.opened_for_relays(start).opened
    for each in (told, relays):
        found = SumPlan.of(each)
        assert found is not None
        assert found.summers == tuple(map(frozenset, plan))
    assert (relays.round, relays.step, relays.bell_ms) == (7, 6, 0)


def questions(asked: wire.SumsAsked, ranges: int, run_id: RunId = RUN) -> list[Question]:
    """What a summer makes of the message."""
    authors = tuple(
        SumAuthor(PeerId(each.author), each.root, each.samples) for each in asked.authors
    )
    about = run_id, asked.round, asked.learning_rate_bits, authors, ranges
    return [Question(*about, each.range, tuple(each.silent)) for each in asked.ranges]


def test_a_summer_can_make_the_question_from_what_it_is_told() -> None:
    driver, _, _ = asked_driver()
    for each in of_kind(SumsAsked, driver.effects):
        told = coordinator_messages.sums_asked(each.questions).sums_asked
        assert questions(told, 16) == list(each.questions)


def summing() -> RunSpec:
    return quiet_spec(
        algorithm={"name": "local_steps"}, rounds={"sums": 3}, membership={"start_members": 3}
    )


async def play_round(nodes: Sequence[ScriptedNode], run_id: RunId) -> SumPlan:
    """The first round of these, whose summers all sign RESULT; returns its plan."""
    for node in nodes:
        await node.join()
    plans = [SumPlan.of((await node.hear("opened")).opened) for node in nodes]
    plan = plans[0]
    assert plan is not None
    assert plans == [plan] * len(nodes)
    for node in nodes:
        await node.announce(0)
    for node in nodes:
        others = [other.peer for other in nodes if other is not node]
        names = [receipt_name(other, payload_digest(other, 0)) for other in others]
        held = wire.HeldParts(payloads=names, ranges=2**16 - 1)
        await node.say(wire.NodeMessage(parts=wire.PartsHeld(round=0, held=[held])))
    for node in nodes:
        asked = (await node.hear("sums_asked")).sums_asked
        assert [each.range for each in asked.ranges] == list(plan.ranges_of(node.peer))
        for question in questions(asked, plan.ranges, run_id):
            await node.say(wire.NodeMessage(summed=word(question, node.key)))
    return plan


async def test_a_round_of_scripted_summers_is_committed_with_their_results(tmp_path: Path) -> None:
    async with (
        running(tmp_path, summing()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as three,
    ):
        nodes = (one, two, three)
        plan = await play_round(nodes, process.run_id)
        for node in nodes:
            told = (await node.hear("committed")).committed
            commit = opened(told.commit)
            assert commit.sums is not None
            assert (commit.entries, commit.authors) == ((), 3), "a node is not told the authors"
            assert told.is_author
            assert [each.digest for each in commit.sums.results] == [RESULT] * 16
            signers = [set(each.peer_ids) for each in told.holders]
            assert signers == [set(each) for each in plan.summers]
        status = process.status()
        assert status["traffic"]["result_bytes"] == status["last_commits"][0]["result_bytes"] == 144
        assert sum(row["ranges_added"] for row in status["members"]) == 32


async def test_the_log_has_what_was_signed_and_an_auditor_refutes_it_by_that(
    tmp_path: Path,
) -> None:
    async with (
        running(tmp_path, summing()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as three,
        node_of(process, 4) as auditor,
        node_of(process, 5) as forger,
    ):
        plan = await play_round((one, two, three), process.run_id)
        await one.hear("committed")
        (bare,) = (await one.commits_after(-1))[0].commits
        assert not bare.signed_sums, "nobody asked for them"
        assert not bare.author_list
        request = wire.GetCommitsRequest(after_round=-1, for_audit=True)
        (row,) = (await one.stub.GetCommits(request)).commits
        commit = with_author_list(opened(row), row.author_list)
        assert [entry.author for entry in commit.entries] == sorted(
            each.peer for each in (one, two, three)
        )
        said = signed_sums(commit, row)
        assert len(said) == len(row.signed_sums) == 32
        assert [{each.summer for each in said if each.number == n} for n in range(16)] == [
            set(each) for each in plan.summers
        ]
        for each in (auditor, forger):
            await process.desk.order(Appoint(each.peer))
            await each.say(each.hello(await each.connect(), relay=True))
            await each.hear("welcome")
        forged = msgspec.structs.replace(said[0], digest=sha256(b"never signed"))
        await refute(forger, WrongSum(process.run_id, 0, forged, sha256(b"right")))
        assert "signature" in (await forger.hear("refused")).refused.reason
        await refute(auditor, WrongSum(process.run_id, 0, said[0], sha256(b"right")))
        await auditor.ping()
        demoted = process.status()["audit"]["demoted"]
        assert [(each["peer_id"], each["finding"]) for each in demoted] == [
            (said[0].summer, "wrong sum")
        ]
        document = msgspec.json.encode(process.status())
        assert not evidence_in(document, process.run_id), "no evidence against an author"
        assert bytes.fromhex(demoted[0]["evidence"]) == wrong_sum_bytes(
            WrongSum(process.run_id, 0, said[0], sha256(b"right"))
        )


async def refute(node: ScriptedNode, evidence: WrongSum) -> None:
    body = wrong_sum_bytes(evidence)
    await node.say(wire.NodeMessage(wrong_sum=wire.WrongSum(body=body)))
