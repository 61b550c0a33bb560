"""The published rule: evidence whose own numbers do not meet the thresholds proves nothing, and one
sentence says which.
"""

from dataclasses import replace

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.audit import rule
from protocol.audit.lots import Draw, draw
from protocol.audit.rule import (
    AMONG_ROUNDS,
    COPIES,
    COPY,
    EARLY_ROUNDS,
    EXACT,
    FAR_AUDITS,
    LESS_AUDITS,
    OPPOSED_COMPARED,
    SPACING_ROUNDS,
    SPREAD,
)
from protocol.audit.shares import unlike
from protocol.audit.thresholds import DEMO, LOCAL_STEPS
from protocol.codec.commits import Commit, Entry
from protocol.codec.evidence import CHANCE, WHOLE, Companion, CopySource, Cross, Evidence, WorkAudit
from protocol.handshake import public_bytes
from protocol.ids import Digest, PeerId, RunId, sha256
from tests.support import tiny
from tests.support.tiny import tiny_spec

RUN = RunId("ab" * 16)
AUTHOR, *OTHERS = [PeerId(f"{number:032x}") for number in range(4)]
EXPECTED, COMPARED = 9000, 4736
DRAW = Draw(bytes(64), 200)
FAR = 6999
"""Just less than half of what is expected above chance."""


def digest_of(author: PeerId, round: int) -> Digest:
    return sha256(f"{author} in {round}".encode())


def companions(round: int, *agreements: int) -> tuple[Companion, ...]:
    return tuple(
        Companion(author, digest_of(author, round), agreement, COMPARED)
        for author, agreement in zip(OTHERS, agreements, strict=False)
    )


def audit(
    number: int, agreement: int, others: tuple[int, ...] = (8000, EXPECTED, 9900)
) -> WorkAudit:
    round = EARLY_ROUNDS + SPACING_ROUNDS * number
    panel = companions(round, *others)
    expected = rule.expectation(panel)
    digest = digest_of(AUTHOR, round)
    return WorkAudit(
        round, digest, agreement, expected, compared=COMPARED, companions=panel, draw=DRAW
    )


def other_work(*agreements: int) -> Evidence:
    audits = tuple(audit(number, agreement) for number, agreement in enumerate(agreements))
    return Evidence(RUN, AUTHOR, "other work", audits)


def less_work(count: int, agreement: int, spread: int = SPREAD) -> Evidence:
    audits = tuple(audit(number, agreement) for number in range(count))
    return Evidence(RUN, AUTHOR, "less work", audits, spread)


def opposed(agreement: int = DEMO.opposed - 1, compared: int = OPPOSED_COMPARED) -> Evidence:
    row = WorkAudit(0, digest_of(AUTHOR, 0), agreement, CHANCE, compared=compared)
    return Evidence(RUN, AUTHOR, "other work", (row,))


def copied(likeness: int, count: int = COPIES, usual: int = 200, first: int = 100) -> Evidence:
    audits = tuple(
        WorkAudit(
            first + number,
            digest_of(AUTHOR, first + number),
            likeness,
            usual,
            CopySource(OTHERS[0], first + number - 1, digest_of(OTHERS[0], first + number - 1)),
        )
        for number in range(count)
    )
    return Evidence(RUN, AUTHOR, "copied work", audits)


def crossed(own: int, differ: int, likeness: int = WHOLE) -> Evidence:
    digest, source = digest_of(AUTHOR, 3), CopySource(OTHERS[0], 3, digest_of(OTHERS[0], 3))
    row = WorkAudit(3, digest, likeness, WHOLE, source, cross=Cross(differ, own))
    return Evidence(RUN, AUTHOR, "copied work", (row,))


def changed(evidence: Evidence, place: int, **fields: object) -> Evidence:
    """The evidence with another audit in one place."""
    audits = list(evidence.audits)
    audits[place] = msgspec.structs.replace(audits[place], **fields)
    return msgspec.structs.replace(evidence, audits=tuple(audits))


@pytest.mark.parametrize(
    "evidence",
    [
        other_work(*[FAR] * FAR_AUDITS),
        other_work(*[0] * rule.FAR_AMONG),
        less_work(8, 8400),
        less_work(LESS_AUDITS, 8450),
        opposed(),
        copied(COPY),
        copied(EXACT, usual=WHOLE),
        copied(EXACT, first=5),
        crossed(0, 41),
        crossed(76, 256),
    ],
)
def test_evidence_that_meets_the_thresholds_proves_what_it_finds(evidence: Evidence) -> None:
    assert rule.flaw(evidence, DEMO) == ""


HONEST = other_work(9000, 8900, 9100)
PROVEN = other_work(FAR, FAR, FAR)


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (HONEST, "less than half of what companions agree in above chance, got 90 % beside 90 %"),
        (other_work(FAR, FAR, FAR + 1), "less than half of what companions agree in"),
        (other_work(FAR, FAR), "expected 3 audits far below what is expected, of 4, got 2"),
        (other_work(*[FAR] * 5), "got 5"),
        (changed(PROVEN, 1, expected=9900), "the median of the companions, 90 %"),
        (changed(PROVEN, 1, companions=()), "expected the companions and the number of signs"),
        (changed(PROVEN, 1, draw=None), "expected the lot of each audit, got none in round 40"),
        (changed(PROVEN, 0, compared=0), "expected the companions and the number of signs"),
        (changed(PROVEN, 0, round=EARLY_ROUNDS - 1), "expected audits from round 32 on"),
        (changed(PROVEN, 0, round=PROVEN.audits[1].round - 7), "8 rounds apart or more"),
        (less_work(8, 9000), "expected a sum of 13 or more by the sequential test"),
        (less_work(4, 5000), "of 4 audits, got 12.0"),
        (less_work(8, 8400, SPREAD - 1), "expected honest work to spread by 5 % or more"),
        (less_work(8, 8400, 2000), "expected a sum of 13 or more"),
        (less_work(LESS_AUDITS + 1, 8000), "expected the last 20 audits at most, got 21"),
        (opposed(DEMO.opposed), "expected turned signs, in less than 15 % of at least 256 signs"),
        (opposed(compared=OPPOSED_COMPARED - 1), "got 14.99 % of 255 in round 0"),
        (copied(COPY - 1), "expected a likeness of 40 % or more, got 39.99 %"),
        (copied(5000, usual=2000), "expected a likeness of 80 % or more"),
        (copied(EXACT - 1, first=5), "expected a likeness of 95 % or more"),
        (copied(WHOLE, count=COPIES - 1), "expected 3 copies or the very bytes of another, got 2"),
        (crossed(0, 40), "expected a copy that follows the gradient of its source's author"),
        (crossed(77, 256), "got 77 of 256 signs of its own in round 3"),
        (crossed(250, 256), "got 250 of 256 signs of its own"),
        (crossed(0, 0), "got 0 of 0 signs of its own"),
        (crossed(0, 100, EXACT - 1), "expected a likeness of 95 % or more"),
        (changed(copied(WHOLE), 2, round=100 + AMONG_ROUNDS), "expected copies within 256 rounds"),
    ],
)
def test_true_numbers_that_prove_nothing_are_refused_in_one_sentence(
    evidence: Evidence, words: str
) -> None:
    found = rule.flaw(evidence, DEMO)
    assert words in found
    assert len(found) <= 200, "it stands in the operator's log whole"


def test_honest_work_beside_companions_next_to_chance_is_not_judged() -> None:
    rows = tuple(
        audit(number, 5000, (DEMO.telling - 1, DEMO.telling - 1, WHOLE)) for number in range(3)
    )
    assert "next to chance" in rule.flaw(Evidence(RUN, AUTHOR, "other work", rows), DEMO)


def test_the_bytes_of_another_are_one_proof_and_only_whole() -> None:
    row = copied(WHOLE).audits[0]
    assert row.source
    own = msgspec.structs.replace(row.source, digest=row.digest)
    foreign = changed(copied(WHOLE, count=1), 0, source=own)
    assert rule.flaw(foreign, DEMO) == ""
    assert "expected a likeness of 100 %" in rule.flaw(
        changed(foreign, 0, agreement=WHOLE - 1), DEMO
    )


def test_an_even_panel_is_expected_to_agree_in_the_mean_of_its_middle_rounded_down() -> None:
    assert rule.expectation(companions(40, 8001, 8002)) == 8001
    assert rule.expectation(companions(40, 7000)) == 7000


# ---- the log


def commit(round: int, *authors: PeerId, payload_bytes: int = 1000) -> Commit:
    entries = tuple(
        Entry(author, digest_of(author, round), payload_bytes, 1, 8) for author in authors
    )
    return Commit(RUN, round, round, entries, 0, 0, Digest(bytes(32)))


def test_audits_of_payloads_that_their_round_does_not_have_are_refused() -> None:
    row = PROVEN.audits[0]
    whole = commit(row.round, AUTHOR, *OTHERS)
    assert rule.unfounded(AUTHOR, row, whole) == ""
    for log in (None, commit(row.round + 1, AUTHOR, *OTHERS), commit(row.round, *OTHERS)):
        assert "that no commit names" in rule.unfounded(AUTHOR, row, log)
    without = commit(row.round, AUTHOR, *OTHERS[1:])
    assert f"got one of {OTHERS[0][:8]} in round" in rule.unfounded(AUTHOR, row, without)
    another = replace(whole, entries=(replace(whole.entries[0], author=OTHERS[0]),))
    assert "that no commit names" in rule.unfounded(AUTHOR, row, another)


def test_more_signs_than_a_payload_holds_are_refused() -> None:
    row = PROVEN.audits[0]
    small = commit(row.round, AUTHOR, *OTHERS, payload_bytes=COMPARED // 8 - 1)
    assert "no more signs than a payload of 591 bytes holds" in rule.unfounded(AUTHOR, row, small)
    row = crossed(0, 8 * 5 + 1).audits[0]
    small = commit(row.round, AUTHOR, payload_bytes=5)
    assert "no more signs than a payload of 5 bytes holds" in rule.unfounded(AUTHOR, row, small)


def test_an_audit_of_a_round_that_its_auditors_lot_has_not_drawn_is_refused() -> None:
    """So it cannot choose, among many audits of an honest author, those that are low by chance."""
    key = Ed25519PrivateKey.from_private_bytes(b"a" * 32)
    drawn, missed = 0, 0
    for number in range(200):
        row = audit(number, FAR)
        row = msgspec.structs.replace(row, draw=draw(key, RUN, row.round, 200))
        found = rule.undrawn(PROVEN, row, public_bytes(key), commit(row.round, AUTHOR, *OTHERS))
        drawn, missed = drawn + (not found), missed + ("one in 25 of 4 authors" in found)
    assert drawn + missed == 200
    assert 0 < drawn < 25, "8 on average"
    other = Ed25519PrivateKey.from_private_bytes(b"b" * 32)
    log = commit(row.round, AUTHOR, *OTHERS)
    assert "the auditor's own lot" in rule.undrawn(PROVEN, row, public_bytes(other), log)


def test_a_source_must_be_committed_in_its_own_round() -> None:
    source = copied(WHOLE).audits[0].source
    assert source
    assert rule.sourceless(source, commit(source.round, OTHERS[0])) == ""
    for log in (None, commit(source.round, AUTHOR), commit(source.round + 1, OTHERS[0])):
        assert "that no commit names" in rule.sourceless(source, log)


def test_work_that_nobody_can_compute_again_is_no_evidence() -> None:
    spec = tiny_spec(overlap=1).model_copy(update={"algorithm": tiny.DEMO})
    named = spec.model_copy(
        update={"data": spec.data.model_copy(update={"manifest_sha256": "ab" * 32})}
    )
    assert "wait for the decision before them, got round 3," in rule.misplaced(
        crossed(0, 41), named
    )
    assert "wait for the decision before them, got round 32" in rule.misplaced(PROVEN, named)
    assert rule.misplaced(copied(WHOLE), spec) == "", "copies are told there too"
    rounds = named.rounds.model_copy(update={"audit_every": SPACING_ROUNDS})
    assert rule.misplaced(PROVEN, named.model_copy(update={"rounds": rounds})) == ""
    assert "the run's own data" in rule.misplaced(PROVEN, tiny_spec(overlap=0, algorithm=tiny.DEMO))
    algorithm = spec.algorithm.model_copy(update={"name": "gossip-adam"})
    other = spec.model_copy(update={"algorithm": algorithm})
    assert "whose nodes have one model" in rule.misplaced(copied(WHOLE), other)
    algorithm = spec.algorithm.model_copy(update={"name": "local_steps"})
    local = spec.model_copy(update={"algorithm": algorithm})
    assert rule.misplaced(copied(WHOLE), local) == ""
    assert "the run's own data" in rule.misplaced(PROVEN, local)


# ---- local steps


def at(agreement: int, expected: int, compared: int = COMPARED) -> Evidence:
    """Three audits of one author that agree in so much where its companions do in that."""
    audits = []
    for number in range(3):
        row = audit(number, agreement, (expected,) * 3)
        audits.append(msgspec.structs.replace(row, compared=compared))
    return Evidence(RUN, AUTHOR, "other work", tuple(audits))


def test_less_agreement_tells_with_local_steps_where_enough_signs_are_compared() -> None:
    low = at(5100, 5800)
    assert rule.flaw(low, LOCAL_STEPS) == ""
    assert "agree in 62 % of signs or more" in rule.flaw(low, DEMO)
    assert "58 % of 2499 in round 32, which is next to chance" in rule.flaw(
        at(5100, 5800, 2499), LOCAL_STEPS
    )
    assert rule.flaw(at(5100, 5800, 2500), LOCAL_STEPS) == "", "eight standard deviations"
    assert "next to chance" in rule.flaw(at(5000, 5299, 1_000_000), LOCAL_STEPS)


def test_turned_local_steps_are_told_by_their_distance_from_chance() -> None:
    turned = opposed(4000, COMPARED)
    assert rule.flaw(turned, LOCAL_STEPS) == ""
    assert "turned signs, in less than 15 %" in rule.flaw(turned, DEMO)
    assert "turned signs, in less than 45 %" in rule.flaw(opposed(4000, 999), LOCAL_STEPS)
    assert rule.flaw(opposed(4000, 1000), LOCAL_STEPS) == ""
    assert rule.flaw(opposed(4500, 1_000_000), LOCAL_STEPS)


def test_less_work_is_told_beside_authors_of_no_more_samples() -> None:
    evidence = less_work(8, 8400)
    (row, *_), own = evidence.audits, 100

    def log(*others: int) -> Commit:
        decided = commit(row.round, AUTHOR, *OTHERS)
        samples = dict(zip((AUTHOR, *OTHERS), (own, *others), strict=True))
        entries = tuple(replace(each, samples=samples[each.author]) for each in decided.entries)
        return replace(decided, entries=entries)

    assert unlike(evidence, row, log(125, 50, 100), LOCAL_STEPS) == ""
    found = unlike(evidence, row, log(100, 126, 100), LOCAL_STEPS)
    assert "which trained 100 in round 32, got 00000000 with 126" in found
    assert unlike(evidence, row, log(100, 126, 100), DEMO) == ""
    assert unlike(PROVEN, row, log(100, 126, 100), LOCAL_STEPS) == "", "noise is noise"


def test_in_the_first_rounds_of_local_steps_a_copy_follows_its_source_by_ten_deviations() -> None:
    for own, differ in ((0, 103), (47, 256)):
        assert rule.flaw(crossed(own, differ), LOCAL_STEPS) == ""
        assert "signs of its own in round 3" in rule.flaw(crossed(own + 1, differ), LOCAL_STEPS)
        assert rule.flaw(crossed(own + 1, differ), DEMO) == ""
