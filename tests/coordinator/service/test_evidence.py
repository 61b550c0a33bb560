"""An auditor's evidence over real gRPC: it demotes the author whose payloads the log has, stands in
the operator's log, and comes with what anybody needs to compute it again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from prometheus_client import generate_latest

from coordinator.act_log import read_acts
from coordinator.journal import JOURNAL_NAME
from coordinator.machine.events import acts
from coordinator.metrics import registry
from coordinator.process import CoordinatorProcess
from coordinator.traffic import CoordinatorTraffic
from lockstep.audit.work.published import Accusation, evidence_in
from lockstep.commands.run.audit import verdicts
from protocol import wire_pb2 as wire
from protocol.audit import lots, rule
from protocol.audit.lots import draw
from protocol.audit.rule import OPPOSED_COMPARED
from protocol.codec import evidence as coding
from protocol.codec.evidence import (
    CHANCE,
    WHOLE,
    Companion,
    CopySource,
    Evidence,
    WorkAudit,
    sign_evidence,
)
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, sha256
from tests.coordinator.client import (
    ScriptedNode,
    node_key,
    node_of,
    quiet_spec,
    running,
    train,
    until_after,
)
from tests.coordinator.machine.driver import payload_digest
from tests.coordinator.service.test_auditors import relaying

SPEC = quiet_spec(
    algorithm={"name": "demo"}, data={"manifest_sha256": "ab" * 32}, rounds={"overlap": 0}
)
"""A run whose work anybody with its data computes again."""


async def accuse(
    auditor: ScriptedNode,
    author: PeerId,
    digest: Digest,
    signer: ScriptedNode | None = None,
    evidence: Evidence | None = None,
) -> None:
    audit = WorkAudit(0, digest, 1000, CHANCE, compared=OPPOSED_COMPARED)
    evidence = evidence or Evidence(auditor.run_id, author, "other work", (audit,))
    signed = sign_evidence(evidence, (signer or auditor).key)
    said = wire.Evidence(body=signed.body, public_key=signed.public_key, signature=signed.signature)
    await auditor.say(wire.NodeMessage(evidence=said))


@asynccontextmanager
async def a_round(
    directory: Path, *, named: bool = True
) -> AsyncIterator[tuple[CoordinatorProcess, ScriptedNode, ScriptedNode, ScriptedNode]]:
    """A coordinator whose two members have trained a round, and an auditor, which the operator has
    named.
    """
    async with (
        running(directory, SPEC) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
        node_of(process, 3) as auditor,
    ):
        if named:
            await process.desk.order(acts.Appoint(auditor.peer))
        await relaying(auditor)
        await one.join()
        await two.join()
        await train([one, two], 1)
        await until_after(lambda: process.rounds.state.head_round >= 0, one.ping)
        yield process, one, two, auditor


def demoted(process: CoordinatorProcess) -> list[PeerId]:
    return list(process.rounds.members.standing.demoted)


async def test_evidence_of_a_named_auditor_demotes_and_is_an_act_of_the_chain(
    tmp_path: Path,
) -> None:
    async with a_round(tmp_path) as (process, one, two, auditor):
        for _ in range(2):  # it is repeated, and changes nothing the second time
            await accuse(auditor, two.peer, payload_digest(two.peer, 0))
        await until_after(lambda: demoted(process) == [two.peer], auditor.ping)
        reply = await two.ping()
        assert reply.state == "muted"
        assert "agreed in 10 % of signs where chance agrees in 50 %" in reply.reason
        (shown,) = process.status()["audit"]["demoted"]
        assert (shown["peer_id"], shown["auditor"]) == (two.peer, auditor.peer)
        assert shown["audits"] == [
            {
                "round": 0,
                "payload": payload_digest(two.peer, 0).hex(),
                "agreement": 0.1,
                "expected": 0.5,
                "compared": OPPOSED_COMPARED,
                "companions": [],
            }
        ]
        members = {each["peer_id"]: each["standing"] for each in process.status()["members"]}
        assert members == {one.peer: "", two.peer: "demoted"}
        log = read_acts(tmp_path / JOURNAL_NAME)
        assert [type(each.act) for each in log.acts] == [acts.Appoint, acts.Demote]
        assert verdicts(log) == {"other work": 1}
        metrics = generate_latest(registry(process.rounds, CoordinatorTraffic()))
        assert b"lockstep_coordinator_demoted 1.0" in metrics
    async with running(tmp_path, SPEC) as process:
        assert demoted(process) == [two.peer]


async def test_accepted_evidence_is_opened_once_though_it_is_said_twice_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    coding.open_evidence.cache_clear()
    checked, verify = list[bytes](), coding.verify

    def counted(public_key: bytes, signature: bytes, message: bytes) -> PeerId:
        checked.append(signature)
        return verify(public_key, signature, message)

    monkeypatch.setattr(coding, "verify", counted)
    async with a_round(tmp_path) as (process, _, two, auditor):
        for _ in range(2):
            await accuse(auditor, two.peer, payload_digest(two.peer, 0))
        await until_after(lambda: demoted(process) == [two.peer], auditor.ping)
        assert process.status()["audit"]["demoted"]
        await auditor.ping()
    assert len(checked) == 1


async def test_the_log_tells_the_samples_behind_each_payload(tmp_path: Path) -> None:
    async with (
        running(tmp_path, quiet_spec()) as process,
        node_of(process, 1) as one,
        node_of(process, 2) as two,
    ):
        await one.join()
        await two.join()
        (commit,) = await train([one, two], 1)
        assert not (await one.commits_after(-1))[0].commits[0].trained, "nobody asked for them"
        request = wire.GetCommitsRequest(after_round=-1, for_audit=True)
        rows = (await one.stub.GetCommits(request)).commits
        trained = [[(share.first, share.count) for share in row.shares] for row in rows[0].trained]
        assert len(trained) == len(commit.entries) == 2
        opened = next(each.opened for each in one.heard if each.WhichOneof("kind") == "opened")
        own = trained[[entry.author for entry in commit.entries].index(one.peer)]
        assert own == [(opened.shares[0].first, 1)], "one sample was announced"


@pytest.mark.parametrize("known", [False, True])
async def test_a_source_of_copied_work_must_be_committed_too(known: bool, tmp_path: Path) -> None:
    async with a_round(tmp_path) as (process, one, two, auditor):
        await train([one, two], 3)
        await until_after(lambda: process.rounds.state.head_round >= 3, one.ping)
        digest = payload_digest(one.peer, 0) if known else sha256(b"no commit names it")
        source = CopySource(one.peer, 0, digest)
        first = CopySource(two.peer, 1, payload_digest(two.peer, 1))
        rows = [(1, source), (2, source), (3, first)]
        audits = tuple(
            WorkAudit(round, payload_digest(two.peer, round), 9900, 200, each)
            for round, each in rows
        )
        audit = audits[0]
        evidence = Evidence(auditor.run_id, two.peer, "copied work", audits)
        await accuse(auditor, two.peer, audit.digest, evidence=evidence)
        if not known:
            assert "that no commit names" in (await auditor.hear("refused")).refused.reason
            assert not demoted(process)
            return
        await until_after(lambda: demoted(process) == [two.peer], auditor.ping)
        document = msgspec.json.encode(process.status())
        found = [each.evidence for each in evidence_in(document, auditor.run_id)]
        assert found == [evidence], "anybody reads it there"


@pytest.mark.parametrize("named", [False, True])
async def test_evidence_that_does_not_hold_ends_an_auditors_session_and_changes_nothing(
    named: bool, tmp_path: Path
) -> None:
    async with a_round(tmp_path, named=named) as (process, _, two, auditor):
        await accuse(auditor, two.peer, sha256(b"a payload that no commit names"))
        if named:
            assert "that no commit names" in (await auditor.hear("refused")).refused.reason
        else:
            await auditor.ping()
        assert not demoted(process)


async def test_a_named_auditor_that_lies_with_true_numbers_takes_no_standing_and_raises_an_alarm(
    tmp_path: Path,
) -> None:
    async with a_round(tmp_path) as (process, _, two, auditor):
        audit = WorkAudit(0, payload_digest(two.peer, 0), 5100, CHANCE, compared=512)
        evidence = Evidence(auditor.run_id, two.peer, "other work", (audit,))
        await accuse(auditor, two.peer, audit.digest, evidence=evidence)
        said = (await auditor.hear("refused")).refused.reason
        assert said == (
            "expected turned signs, in less than 15 % of at least 256 signs those of what was "
            "computed again, got 51 % of 512 in round 0"
        )
        assert not demoted(process)
        document = process.status()["audit"]
        assert f"accuses with evidence that proves nothing (once; {said})" in document["alarm"]
        assert document["rejected"] == [{"auditor": auditor.peer, "count": 1, "reason": said}]
        log = read_acts(tmp_path / JOURNAL_NAME)
        assert [acts.words(each.act) for each in log.acts[1:]] == [
            f"refuse the evidence of auditor {auditor.peer} against {two.peer}: {said}"
        ]
        metrics = generate_latest(registry(process.rounds, CoordinatorTraffic()))
        assert b"lockstep_coordinator_audit_alarm 1.0" in metrics
    async with running(tmp_path, SPEC) as process:
        assert process.status()["audit"]["rejected"] == document["rejected"]


@pytest.mark.parametrize(
    ("share", "signer", "refusal"),
    [
        (WHOLE, 3, ""),
        (1, 3, "expected rounds that the auditor's lots draw"),
        (WHOLE, 4, "expected the auditor's own lot of round"),
    ],
)
async def test_evidence_beside_others_counts_where_the_auditors_own_lots_have_drawn_its_rounds(
    share: int, signer: int, refusal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "EARLY_ROUNDS", 0)
    monkeypatch.setattr(rule, "SPACING_ROUNDS", 1)
    monkeypatch.setattr(lots, "CHANCE_MAX", WHOLE)
    async with a_round(tmp_path) as (process, one, two, auditor):
        await train([one, two], 2)
        await until_after(lambda: process.rounds.state.head_round >= 2, one.ping)
        key = node_key(signer)

        def audit(round: int) -> WorkAudit:
            companion = Companion(one.peer, payload_digest(one.peer, round), 9000, 100)
            return WorkAudit(
                round,
                payload_digest(two.peer, round),
                5000,
                9000,
                compared=100,
                companions=(companion,),
                draw=draw(key, auditor.run_id, round, share),
            )

        audits = tuple(map(audit, range(3)))
        evidence = Evidence(auditor.run_id, two.peer, "other work", audits)
        await accuse(auditor, two.peer, audits[0].digest, evidence=evidence)
        if refusal:
            assert refusal in (await auditor.hear("refused")).refused.reason
            assert not demoted(process)
            return
        await until_after(lambda: demoted(process) == [two.peer], auditor.ping)
        document = msgspec.json.encode(process.status())
        found = evidence_in(document, auditor.run_id)
        assert found == [Accusation(evidence, public_bytes(auditor.key))]


async def test_an_auditor_speaks_with_its_own_signature_alone(tmp_path: Path) -> None:
    async with a_round(tmp_path) as (process, one, two, auditor):
        await accuse(auditor, two.peer, payload_digest(two.peer, 0), signer=one)
        assert "expected evidence of" in (await auditor.hear("refused")).refused.reason
        assert not demoted(process)
