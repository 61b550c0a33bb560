"""The session of an auditor, as its messages cross the wire."""

from pathlib import Path

import pytest

from coordinator.machine.events.acts import Admit, Appoint
from coordinator.machine.events.inputs import Audited
from coordinator.process import CoordinatorProcess
from protocol import wire_pb2 as wire
from tests.coordinator.client import ScriptedNode, node_of, quiet_spec, running, train, until_after
from tests.coordinator.machine.driver import state_digest

WRONG = 666


async def relaying(node: ScriptedNode) -> None:
    await node.say(node.hello(await node.connect(), relay=True))
    await node.hear("welcome")


async def word(node: ScriptedNode, round: int, digest: int) -> None:
    await node.say(wire.NodeMessage(audited=wire.Audited(round=round, state_digest=digest)))


def audit(process: CoordinatorProcess) -> dict[str, object]:
    return dict(process.status()["audit"])


async def test_the_word_of_a_named_auditor_decides_against_all_members(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as auditor,
    ):
        await process.desk.order(Appoint(auditor.peer))
        assert audit(process) == {
            "auditors": [{"peer_id": auditor.peer, "round": None, "connected": False}],
            "alarm": "",
            "demoted": [],
            "rejected": [],
        }
        await relaying(auditor)
        await one.join()
        await two.join()
        await train([one, two], 1)
        await word(auditor, 0, WRONG)
        for node in (one, two):
            assert (await node.hear("resync")).resync.round == 0
        assert audit(process)["auditors"] == [
            {"peer_id": auditor.peer, "round": 0, "connected": True}
        ]
        commits = (await one.commits_after(-1))[0].commits
        assert (commits[0].state_digest, commits[0].digest_reports) == (WRONG, 2)


async def test_the_word_and_the_receipts_of_any_other_relay_are_dropped(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as relay,
    ):
        await relaying(relay)
        await one.join()
        await two.join()
        await train([one, two], 1)
        await word(relay, 0, WRONG)
        await relay.hold(1, one.peer, two.peer)
        await relay.ping()
        # The members' own words come on other streams than the relay's: wait for both.
        tally = process.rounds.state.verdicts.tally
        await until_after(lambda: tally.by_round[0].verdict is not None, relay.ping)
        assert tally.by_round[0].verdict == state_digest(0)
        assert not process.rounds.state.undecided[0].receipts.named
        kinds = {type(event) for _, _, event in process.journal.numbered_events()}
        assert Audited not in kinds


async def test_an_auditors_receipt_is_a_copy(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as auditor,
    ):
        await process.desk.order(Appoint(auditor.peer))
        await relaying(auditor)
        await one.join()
        await two.join()
        for node in (one, two):
            await node.hear("opened")
            await node.announce(0)
        await auditor.hold(0, one.peer, two.peer)
        told = (await one.hear("committed")).committed
        assert all(auditor.peer in holders.peer_ids for holders in told.holders)


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (wire.Audited(round=-2), "round of at least -1"),
        (wire.Audited(round=0, snapshot_sha256=b"short"), "32 bytes"),
    ],
)
async def test_a_word_out_of_bounds_ends_the_session_with_the_reason(
    tmp_path: Path, message: wire.Audited, words: str
) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 3) as auditor:
        await process.desk.order(Appoint(auditor.peer))
        await relaying(auditor)
        await auditor.say(wire.NodeMessage(audited=message))
        assert words in (await auditor.hear("refused")).refused.reason
        await auditor.hear_end()


async def test_auditors_that_differ_hold_the_run_and_the_status_says_so(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as first,
        node_of(process, 4) as second,
    ):
        for auditor in (first, second):
            await process.desk.order(Appoint(auditor.peer))
            await relaying(auditor)
        await word(first, -1, state_digest(-1))
        await word(second, -1, WRONG)
        await until_after(lambda: bool(audit(process)["alarm"]), second.ping)
        await one.join()
        await two.join()
        await two.ping()
        assert process.status()["phase"] == "waiting"
        assert "auditors differ on the state after round -1" in process.status()["reason"]
        values = {
            sample.name: sample.value
            for family in process.registry.collect()
            for sample in family.samples
        }
        assert values["lockstep_coordinator_audit_alarm"] == 1
        assert values["lockstep_coordinator_auditors"] == 2
        await word(second, -1, state_digest(-1))
        assert (await one.hear("opened")).opened.round == 0


async def test_an_auditor_has_a_place_though_the_run_has_all_its_relays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.service.relays.RELAYS_MAX", 1)
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as relay,
        node_of(process, 2) as other,
        node_of(process, 3) as auditor,
    ):
        await process.desk.order(Appoint(auditor.peer))
        await relaying(auditor)
        await relaying(relay)
        await other.say(other.hello(await other.connect(), relay=True))
        assert (await other.hear("refused")).refused.retry


async def test_a_run_that_admits_by_list_admits_its_auditors(tmp_path: Path) -> None:
    async with running(tmp_path, quiet_spec()) as process, node_of(process, 3) as auditor:
        await process.desk.order(Admit("list"))
        await auditor.say(auditor.hello(await auditor.connect(), relay=True))
        assert "list" in (await auditor.hear("refused")).refused.reason
        await process.desk.order(Appoint(auditor.peer))
        await relaying(auditor)
