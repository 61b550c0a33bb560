"""The audit of work beside a replay: it finds noise, leaves the honest alone, and lets the replay
go first. What it finds can be computed again.
"""

import threading
from collections import Counter
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coordinator.machine.state.standing import Demoted
from coordinator.status_document import _demoted
from lockstep.audit.acting import movements_of
from lockstep.audit.copies.check import CopyCheck
from lockstep.audit.copies.payloads import Payloads
from lockstep.audit.copies.watching import CopyWatch
from lockstep.audit.work import auditing
from lockstep.audit.work.auditing import WorkWatch
from lockstep.audit.work.authors import AuthorAudit
from lockstep.audit.work.check import WorkCheck
from lockstep.audit.work.proofs import ProofCheck
from lockstep.audit.work.published import Accusation, evidence_in
from lockstep.audit.work.recompute import Recomputation, Recomputer, unaudited
from node.data.corpus import Corpus
from node.replica.replica import Replica
from protocol import wire_pb2 as wire
from protocol.audit import lots, rule
from protocol.audit.lots import Draw, draw
from protocol.audit.rule import FAR_AUDITS
from protocol.codec.commits import Commit, Entry
from protocol.codec.evidence import CHANCE, WHOLE, Companion, CopySource, Evidence
from protocol.codec.evidence import WorkAudit as Audited
from protocol.codec.messagepack import packed
from protocol.codec.payload import Header, decode, encode
from protocol.errors import DataError, DivergedError, RemoteProtocolError
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from protocol.runfile import AlgorithmSpec
from protocol.sums.movements import Movement
from tests.lockstep.audit.work.crowd import DEMO, LOCAL_STEPS, SHADOW, Crowd, spec_for
from tests.support.tiny import tiny_spec

KEY = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
ROUNDS = 10
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def no_early_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "EARLY_ROUNDS", 0)
    monkeypatch.setattr(rule, "SPACING_ROUNDS", 1)
    monkeypatch.setattr(lots, "CHANCE_MAX", WHOLE)


def audit_of(crowd: Crowd, path: Path, found: list[Evidence], share: float = 1e6) -> WorkWatch:
    recomputer = Recomputer(crowd.info.spec, crowd.corpus)

    def draws(round: int) -> Draw:
        return draw(KEY, crowd.info.run_id, round, WHOLE)

    return WorkWatch(crowd.info, recomputer, share, draws=draws, tell=found.append, path=path)


async def movements_in(
    crowd: Crowd, commit: Commit, voids: frozenset[Digest] = frozenset()
) -> dict[PeerId, Movement]:
    """What the search for copies reads of a round for the audit of work."""
    read = Payloads(crowd.payload, crowd.replica.shape)
    return await movements_of(commit, voids, read, crowd.info.spec.algorithm)


async def play(crowd: Crowd, audit: WorkWatch, rounds: int, *, behind: int = 0) -> None:
    for _ in range(rounds):
        commit, recorded = crowd.work()
        await audit.before(commit, recorded, frozenset(), crowd.replica, behind=behind)
        crowd.apply(commit)
        while await audit.step(crowd.payload, PATIENCE_S):
            pass


@pytest.fixture(scope="module", params=[DEMO, LOCAL_STEPS], ids=lambda each: each.name)
def noisy(corpus: Corpus, request: pytest.FixtureRequest) -> Crowd:
    return Crowd(corpus, authors=4, noisy=(2,), algorithm=request.param)


async def test_noise_is_found_after_three_audits_and_the_honest_are_left_alone(
    noisy: Crowd, tmp_path: Path
) -> None:
    found: list[Evidence] = []
    audit = audit_of(noisy, tmp_path / "work.json", found)
    commits = []
    for _ in range(ROUNDS):
        commit, recorded = noisy.work()
        commits.append((commit, recorded))
        movements = await movements_in(noisy, commit)
        await audit.before(
            commit, recorded, frozenset(), noisy.replica, behind=0, movements=movements
        )
        noisy.apply(commit)
        while await audit.step(noisy.payload, PATIENCE_S):
            pass
    document = audit.document()
    assert {each.author for each in found} == noisy.noisy
    assert len(found[0].audits) == FAR_AUDITS
    assert all(abs(each.agreement - 5000) < 1500 for each in found[0].audits)
    assert all(each.expected > 7500 for each in found[0].audits)
    assert document["audits"] >= 4 * (ROUNDS - 2)
    assert document["seconds"] > 0
    # a later start goes on with the same audits
    again = audit_of(noisy, tmp_path / "work.json", []).document()
    assert (again["audits"], again["found"]) == (document["audits"], document["found"])
    # anybody computes the evidence again, from genesis
    replay = noisy.at_genesis()
    check = WorkCheck(found[:1], Recomputer(noisy.info.spec, noisy.corpus))
    for commit, recorded in commits:
        await check.before(commit, recorded, frozenset(), replica=replay, payload=noisy.payload)
        replay.apply(commit, [noisy.payloads[entry.digest] for entry in commit.entries])
    check.require_complete()
    assert check.checked == FAR_AUDITS
    accusations = [Accusation(each, public_bytes(KEY)) for each in found]
    proofs = ProofCheck(accusations, noisy.info.spec)
    for commit, _ in commits:
        proofs.before(commit)
    assert proofs.proven() == len(found)


async def test_the_first_local_steps_of_authors_are_computed_again_to_the_sign(
    corpus: Corpus,
) -> None:
    """Their optimizers begin as the auditor's does; after that they have momentum."""
    crowd, shares = Crowd(corpus, authors=2, algorithm=LOCAL_STEPS), []
    for _ in range(2):
        commit, recorded = crowd.work()
        recomputer = Recomputer(crowd.info.spec, corpus)
        recomputer.stand_at(crowd.replica.committed, commit.learning_rate_bits)
        for entry in commit.entries:
            passes = recomputer.begin(auditing.trained(commit, recorded)[entry.author])
            while passes.next():
                pass
            passes.finish()
            shares.append(recomputer.agreement(crowd.payloads[entry.digest], None).share)
        crowd.apply(commit)
    assert shares[:2] == [pytest.approx(1, abs=0.001)] * 2
    assert all(0.6 < share < 0.999 for share in shares[2:])


async def test_steps_that_blow_up_agree_in_nothing_and_stop_no_audit(corpus: Corpus) -> None:
    crowd = Crowd(corpus, authors=2, algorithm=LOCAL_STEPS)
    commit, recorded = crowd.work()
    recomputer = Recomputer(crowd.info.spec, corpus)
    blown_up = {name: tensor * 1e30 for name, tensor in crowd.replica.committed.items()}
    recomputer.stand_at(blown_up, commit.learning_rate_bits)
    passes = recomputer.begin(auditing.trained(commit, recorded)[crowd.authors[0]])
    while passes.next():
        pass
    passes.finish()
    assert recomputer.agreement(crowd.payloads[commit.entries[0].digest], None).compared == 0


async def test_turned_signs_are_found_by_one_audit_of_the_first_rounds_where_only_named_are_audited(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "EARLY_ROUNDS", 32)
    crowd, found = Crowd(corpus, authors=4, turned=(2,)), list[Evidence]()
    audit = audit_of(crowd, tmp_path / "work.json", found)
    turned, honest = crowd.authors[2], crowd.authors[0]
    for named in ({turned, honest}, set[PeerId](), {honest}):
        commit, recorded = crowd.work()
        await audit.before(
            commit, recorded, frozenset(), crowd.replica, behind=0, named=frozenset(named)
        )
        if not crowd.round:
            first = commit, recorded
        crowd.apply(commit)
        while await audit.step(crowd.payload, PATIENCE_S):
            pass
    (evidence,) = found
    assert (evidence.author, [each.round for each in evidence.audits]) == (turned, [0])
    # anybody computes it again
    check = WorkCheck(found, Recomputer(crowd.info.spec, crowd.corpus))
    genesis = crowd.at_genesis()
    await check.before(*first, frozenset(), replica=genesis, payload=crowd.payload)
    check.require_complete()
    assert check.checked == 1


async def test_signs_turned_where_they_weigh_most_are_found_though_as_many_are_honest(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "EARLY_ROUNDS", 32)
    crowd, found = Crowd(corpus, 4, shadows=(2,), algorithm=LOCAL_STEPS), list[Evidence]()
    audit = audit_of(crowd, tmp_path / "work.json", found)
    commit, recorded = crowd.work()
    named, movements = frozenset(crowd.authors), await movements_in(crowd, commit)
    await audit.before(
        commit, recorded, frozenset(), crowd.replica, behind=0, named=named, movements=movements
    )
    while await audit.step(crowd.payload, PATIENCE_S):
        pass
    (evidence,) = found
    assert {evidence.author} == crowd.shadows
    assert evidence.audits[0].agreement < 1000
    # in places alone nothing would be told
    recomputer = Recomputer(crowd.info.spec, corpus)
    recomputer.stand_at(crowd.replica.committed, commit.learning_rate_bits)
    passes = recomputer.begin(auditing.trained(commit, recorded)[evidence.author])
    while passes.next():
        pass
    passes.finish()
    blob = crowd.payloads[commit.entries[2].digest]
    assert recomputer.agreement(blob, None).share == pytest.approx(1 - SHADOW, abs=0.1)
    # anybody computes it again
    check = WorkCheck(found, recomputer)
    await check.before(commit, recorded, frozenset(), crowd.replica, crowd.payload)
    check.require_complete()


async def test_a_payload_that_is_void_or_is_not_anothers_weighs_nothing_for_others(
    corpus: Corpus,
) -> None:
    crowd = Crowd(corpus, authors=3, algorithm=LOCAL_STEPS)
    commit, _ = crowd.work()
    voids, shape = frozenset({commit.entries[1].digest}), crowd.replica.shape
    found = await movements_in(crowd, commit, voids)
    assert found.keys() == {crowd.authors[0], crowd.authors[2]}
    header = Header(crowd.info.run_id, 7, crowd.authors[2])  # of another round
    blob = crowd.payloads[commit.entries[2].digest]
    crowd.payloads[commit.entries[2].digest] = encode(header, decode(blob, shape)[1], shape)
    found = await movements_in(crowd, commit, voids)
    assert found.keys() == {crowd.authors[0]}


async def test_a_drawn_round_is_read_once_for_copies_and_for_what_its_signs_weigh(
    corpus: Corpus, tmp_path: Path
) -> None:
    crowd, found = Crowd(corpus, authors=3, algorithm=LOCAL_STEPS), list[Evidence]()
    work = audit_of(crowd, tmp_path / "work.json", found)
    path = tmp_path / "copies.json"
    watch = CopyWatch(crowd.info, secret=b"s", tell=found.append, path=path)
    authors, reads = AuthorAudit(watch, work), Counter[Digest]()

    async def payload(round: int, entry: Entry) -> bytes:
        reads[entry.digest] += 1
        return await crowd.payload(round, entry)

    commit, recorded = crowd.work()
    nothing = frozenset[Digest]()
    await authors.before(commit, recorded, nothing, crowd.replica, payload, behind=0, restarts=0)
    reads.clear()
    while await authors.step(payload, PATIENCE_S):
        pass
    assert work.document()["audits"] == 3
    assert reads == dict.fromkeys((entry.digest for entry in commit.entries), 1), "for its signs"
    assert watch.movements.keys() == set(crowd.authors)


async def test_all_signs_of_demo_weigh_alike(corpus: Corpus) -> None:
    crowd = Crowd(corpus, authors=2)
    commit, _ = crowd.work()
    assert not await movements_in(crowd, commit)


@pytest.mark.parametrize("algorithm", [DEMO, LOCAL_STEPS], ids=lambda each: each.name)
async def test_a_copy_of_its_own_round_is_told_from_its_origin_by_one_audit_of_both(
    algorithm: AlgorithmSpec, corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "EARLY_ROUNDS", 32)
    monkeypatch.setattr(rule, "CROSS_ODDS", 4)  # so small, gradients differ in few places
    crowd, found = Crowd(corpus, authors=3, copying=(2,), algorithm=algorithm), list[Evidence]()
    tell, run_id = found.append, crowd.info.run_id
    work = audit_of(crowd, tmp_path / "work.json", found)
    watch = CopyWatch(crowd.info, secret=b"s", tell=tell, path=tmp_path / "copies.json")
    authors = AuthorAudit(watch, work)
    commit, recorded = crowd.work()
    nothing = frozenset[Digest]()
    await authors.before(
        commit, recorded, nothing, crowd.replica, crowd.payload, behind=0, restarts=0
    )
    crowd.apply(commit)
    while await authors.step(crowd.payload, PATIENCE_S):
        pass
    (evidence,) = found
    origin, copier = commit.entries[0], crowd.authors[2]
    assert (evidence.author, evidence.finding) == (copier, "copied work")
    assert evidence.audits[0].source == CopySource(origin.author, 0, origin.digest)
    # anybody computes it again, and it does not come out the other way round
    document = status_of(evidence)
    (published,) = evidence_in(document, run_id)
    assert published.evidence == evidence
    await checked(crowd.at_genesis(), crowd, commit, recorded, evidence)
    (row,) = evidence.audits
    turned = CopySource(copier, 0, row.digest)
    row = msgspec.structs.replace(row, digest=origin.digest, source=turned)
    framed = Evidence(run_id, origin.author, "copied work", (row,))
    with pytest.raises(DivergedError, match="the recomputation says that it has the signs of its"):
        await checked(crowd.at_genesis(), crowd, commit, recorded, framed)


def status_of(evidence: Evidence) -> bytes:
    """The part of a coordinator's status that shows evidence."""
    shown = _demoted(evidence.author, Demoted(evidence.author, "", packed(evidence), bytes(32)))
    return msgspec.json.encode({"audit": {"demoted": [shown]}})


async def checked(
    replica: Replica, crowd: Crowd, commit: Commit, recorded: wire.Committed, evidence: Evidence
) -> None:
    """Compare evidence about the first round again, with data and without."""
    copies = CopyCheck([evidence])
    await copies.before(commit, frozenset(), Payloads(crowd.payload, replica.shape))
    assert (copies.checked, copies.unchecked) == (1, 0)
    work, reads = WorkCheck([evidence], Recomputer(crowd.info.spec, crowd.corpus)), list[Digest]()

    async def payload(round: int, entry: Entry) -> bytes:
        reads.append(entry.digest)
        return await crowd.payload(round, entry)

    await work.before(commit, recorded, frozenset(), replica, payload)
    work.require_complete()
    assert work.checked == 1
    assert reads == [evidence.audits[0].digest], "a copy is told by what no sign weighs"


async def test_evidence_that_was_made_up_does_not_come_out(noisy: Crowd, corpus: Corpus) -> None:
    crowd = Crowd(corpus, authors=2)
    commit, recorded = crowd.work()
    entry = commit.entries[0]
    row = {"round": 0, "payload": entry.digest.hex(), "agreement": 0.5, "expected": 0.9}
    shown = {"peer_id": entry.author, "auditor_key": "", "finding": "other work", "audits": [row]}
    document = msgspec.json.encode({"audit": {"demoted": [shown]}})
    evidence = [each.evidence for each in evidence_in(document, crowd.info.run_id)]
    check = WorkCheck(evidence, Recomputer(crowd.info.spec, corpus))
    with pytest.raises(DivergedError, match=r"agrees in 50\.00% of signs, the recomputation says"):
        await check.before(commit, recorded, frozenset(), crowd.replica, crowd.payload)
    missing = WorkCheck(evidence, Recomputer(crowd.info.spec, corpus))
    with pytest.raises(DivergedError, match="names round 0"):
        missing.require_complete()


async def test_a_companion_whose_number_is_made_up_does_not_come_out(corpus: Corpus) -> None:
    crowd = Crowd(corpus, authors=2)
    commit, recorded = crowd.work()
    accused, other = commit.entries
    recomputer = Recomputer(crowd.info.spec, corpus)
    recomputer.stand_at(crowd.replica.committed, commit.learning_rate_bits)
    passes = recomputer.begin(auditing.trained(commit, recorded)[accused.author])
    while passes.next():
        pass
    passes.finish()
    found = recomputer.agreement(crowd.payloads[accused.digest], None)
    panel = (Companion(other.author, other.digest, 5100, 100),)
    true = round(WHOLE * found.share)
    row = Audited(0, accused.digest, true, 5100, compared=found.compared, companions=panel)
    said = Evidence(crowd.info.run_id, accused.author, "other work", (row,))
    check = WorkCheck([said], recomputer)
    with pytest.raises(
        DivergedError, match=r"the payload of 00000000 of round 0 agrees in 51\.00%"
    ):
        await check.before(commit, recorded, frozenset(), crowd.replica, crowd.payload)


def test_verify_refuses_evidence_that_proves_nothing(corpus: Corpus) -> None:
    spec, author = spec_for(corpus), PeerId("ab" * 16)
    row = Audited(40, sha256(b"payload"), 5100, CHANCE, compared=512)
    honest = Evidence(RunId("0" * 32), author, "other work", (row,))
    with pytest.raises(DivergedError, match="against abababab proves nothing: expected turned"):
        ProofCheck([Accusation(honest, b"")], spec).proven()


def test_verify_refuses_audits_of_rounds_that_the_auditors_lots_do_not_draw(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(corpus, authors=2)
    commit, _ = crowd.work()
    accused, other = commit.entries
    panel = (Companion(other.author, other.digest, 9000, 100),)

    def accusation(lot: Draw) -> Accusation:
        row = Audited(0, accused.digest, 9000, 9000, compared=100, companions=panel, draw=lot)
        found = Evidence(crowd.info.run_id, accused.author, "other work", (row,))
        return Accusation(found, public_bytes(KEY))

    own = draw(KEY, crowd.info.run_id, 0, WHOLE)
    ProofCheck([accusation(own)], crowd.info.spec).before(commit)
    later = draw(KEY, crowd.info.run_id, 1, WHOLE)
    with pytest.raises(DivergedError, match="the auditor's own lot of round 0"):
        ProofCheck([accusation(later)], crowd.info.spec).before(commit)
    monkeypatch.setattr(lots, "CHANCE_MAX", 0)
    with pytest.raises(DivergedError, match="rounds that the auditor's lots draw"):
        ProofCheck([accusation(own)], crowd.info.spec).before(commit)


@pytest.mark.parametrize("document", [b"", b"{}", b"[]", b'{"audit": {"demoted": [{}]}}'])
def test_a_status_without_evidence_of_the_form_is_refused(document: bytes, corpus: Corpus) -> None:
    with pytest.raises(RemoteProtocolError, match="expected evidence"):
        evidence_in(document, spec_for(corpus).name)  # type: ignore[arg-type]


async def test_nothing_is_drawn_while_the_replay_is_behind_or_the_time_is_spent(
    corpus: Corpus, tmp_path: Path
) -> None:
    crowd = Crowd(corpus, authors=2)
    behind = audit_of(crowd, tmp_path / "behind.json", [])
    await play(crowd, behind, 3, behind=auditing.NEAR_ROUNDS + 1)
    assert behind.document()["audits"] == 0
    poor = audit_of(crowd, tmp_path / "poor.json", [], share=1e-9)
    await play(crowd, poor, 4)
    assert poor.document()["audits"] == 2, "one panel, and then the debt"


async def test_a_round_that_the_auditors_lot_does_not_draw_is_not_audited(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(corpus, authors=2)
    audit = audit_of(crowd, tmp_path / "work.json", [])
    monkeypatch.setattr(lots, "CHANCE_MAX", 0)
    await play(crowd, audit, 2)
    assert audit.document()["audits"] == 0
    monkeypatch.setattr(lots, "CHANCE_MAX", WHOLE)
    await play(crowd, audit, 1)
    assert audit.document()["audits"] == 2


async def test_a_payload_that_nobody_gives_is_passed_over(corpus: Corpus, tmp_path: Path) -> None:
    crowd = Crowd(corpus, authors=3)
    audit = audit_of(crowd, tmp_path / "work.json", [])
    await play(crowd, audit, 1)
    commit, recorded = crowd.work()
    await audit.before(commit, recorded, frozenset(), crowd.replica, behind=0)
    crowd.apply(commit)
    del crowd.payloads[commit.entries[0].digest]
    while await audit.step(crowd.payload, PATIENCE_S):
        pass
    assert audit.document()["audits"] == 3 + 2


async def test_samples_that_the_log_does_not_name_are_not_audited(
    corpus: Corpus, tmp_path: Path
) -> None:
    crowd = Crowd(corpus, authors=2)
    commit, recorded = crowd.work()
    recorded.trained[0].shares[0].count -= 1
    assert auditing.trained(commit, recorded).keys() == {crowd.authors[1]}
    recorded.trained[0].shares[0].count = -1
    assert auditing.trained(commit, recorded).keys() == {crowd.authors[1]}
    void = frozenset({commit.entries[1].digest})
    assert not auditing.trained(commit, recorded, void)
    recorded.ClearField("trained")
    assert not auditing.trained(commit, recorded)


def test_it_says_where_work_cannot_be_computed_again(corpus: Corpus) -> None:
    assert unaudited(spec_for(corpus)) == ""
    assert "names no manifest" in unaudited(tiny_spec(overlap=0, algorithm=DEMO))
    named = spec_for(corpus)
    rounds = tiny_spec(overlap=1).rounds
    assert "rounds overlap" in unaudited(named.model_copy(update={"rounds": rounds}))
    strewn = rounds.model_copy(update={"audit_every": 16})
    assert unaudited(named.model_copy(update={"rounds": strewn})) == ""
    assert unaudited(spec_for(corpus, LOCAL_STEPS)) == ""
    gossip = named.algorithm.model_copy(update={"name": "gossip-adam"})
    assert "of gossip-adam" in unaudited(named.model_copy(update={"algorithm": gossip}))


async def test_a_long_pass_goes_on_beside_the_replay(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd, held = Crowd(corpus, authors=2), threading.Event()
    audit = audit_of(crowd, tmp_path / "work.json", [])
    commit, recorded = crowd.work()
    await audit.before(commit, recorded, frozenset(), crowd.replica, behind=0)
    make = Recomputation.next

    def slow(passes: Recomputation) -> bool:
        held.wait(PATIENCE_S)
        return make(passes)

    monkeypatch.setattr(Recomputation, "next", slow)
    assert await audit.step(crowd.payload, 0.01)
    crowd.apply(commit)  # the replay does not wait
    later, said = crowd.work()
    await audit.before(later, said, frozenset(), crowd.replica, behind=0)
    assert audit.document()["audits"] == 0
    held.set()
    while await audit.step(crowd.payload, PATIENCE_S):
        pass
    assert audit.document()["audits"] == 2
    await audit.close()


async def test_damaged_data_end_the_audit_of_work_and_nothing_else(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = Crowd(corpus, authors=2)
    audit = audit_of(crowd, tmp_path / "work.json", [])
    commit, recorded = crowd.work()
    await audit.before(commit, recorded, frozenset(), crowd.replica, behind=0)

    def damaged(passes: Recomputation) -> bool:
        raise DataError("the file is damaged")

    monkeypatch.setattr(Recomputation, "next", damaged)
    while await audit.step(crowd.payload, PATIENCE_S):
        pass
    assert audit.document()["words"] == "has ended: the file is damaged"
