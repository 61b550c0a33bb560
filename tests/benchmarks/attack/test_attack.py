"""The attack study: attackers send what their names say, and the auditor removes by what it saw."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.data.corpus import Corpus
from node.demo.sign_audit import Agreement, shared_places
from protocol.audit import rule
from protocol.audit.rule import EARLY_ROUNDS
from protocol.audit.thresholds import DEMO
from protocol.codec.evidence import WHOLE
from protocol.codec.payload import PayloadShape
from tests.benchmarks.attack import results as kept
from tests.benchmarks.attack.auditor import Auditor
from tests.benchmarks.attack.cases import (
    ATTACKS,
    AUDIT_BUDGET,
    AUTHORS,
    BOAST,
    HOSTILE,
    LEAVING_ROUNDS,
    PARAMETERS,
    SEEDS,
    TASK,
    Attack,
    Case,
    Defence,
    cases,
    cell_of,
)
from tests.benchmarks.attack.payloads import Author, Payload, boasting, with_magnitudes
from tests.benchmarks.attack.ring import Ring, shares_of
from tests.benchmarks.attack.trial import Result, Trial
from tests.benchmarks.parity.task import Fixture
from tests.support.tiny import tiny_corpus, tiny_spec

Begin = Callable[[Fixture, Case], Trial]

SMALL = replace(TASK, layers=1, hidden=32, sequence_length=16, validation_samples=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    directory = tmp_path_factory.mktemp("corpus")
    tiny_corpus(directory)
    return Corpus.open(directory)


@pytest.fixture
def fixture(corpus: Corpus) -> Fixture:
    return Fixture(SMALL, cell_of(0, steps=12), corpus)


def case(attack: Attack, defence: Defence = "votes", hostile: int = 2) -> Case:
    return Case(attack, hostile, defence, 0)


def honest_payloads(fixture: Fixture, number: int = 0) -> list[Payload]:
    """The first payloads of all authors."""
    shares = shares_of(fixture, number)
    return [Author(fixture).payload(fixture.gradients(share)) for share in shares]


def sent(fixture: Fixture, attack: Attack, number: int = 0) -> list[Payload]:
    """The first payloads of two attackers beside six honest authors."""
    honest = honest_payloads(fixture)[:6]
    return Ring(fixture, case(attack)).payloads(number, shares_of(fixture, number)[6:], honest)


def alike(one: Payload, other: Payload) -> bool:
    return (
        np.array_equal(one.counts, other.counts)
        and np.array_equal(one.indices, other.indices)
        and np.array_equal(one.momenta, other.momenta)
    )


# ---- the cases


def test_every_case_is_there_and_has_the_clean_run_that_it_is_compared_with() -> None:
    listed = list(dict.fromkeys(cases()))
    assert len({each.name for each in listed}) == len(listed)
    attacked = [each for each in listed if each.attack in ATTACKS]
    assert len(attacked) == len(ATTACKS) * len(HOSTILE) * len(SEEDS) * 3
    assert all(each.clean in listed for each in attacked)
    assert {each.hostile for each in listed if each.attack == "leaving"} == {*HOSTILE}


def test_the_network_is_as_large_as_the_page_says(corpus: Corpus) -> None:
    assert Fixture(TASK, cell_of(0), corpus).layout.parameters == PARAMETERS


# ---- what attackers send


def test_a_flipped_payload_is_an_honest_one_with_every_sign_turned(fixture: Fixture) -> None:
    pairs = zip(sent(fixture, "sign flip"), honest_payloads(fixture)[6:], strict=True)
    for flipped, honest in pairs:
        assert alike(flipped.times(-1), honest)


def test_a_ring_agrees_on_one_payload_against_its_common_momentum(fixture: Fixture) -> None:
    one, other = sent(fixture, "collusion")
    assert alike(one, other)
    joint = Author(fixture).payload(fixture.gradients(np.concatenate(shares_of(fixture, 0)[6:])))
    assert alike(one.times(-1), joint)


def test_a_copycat_sends_what_an_honest_author_sends(fixture: Fixture) -> None:
    pairs = zip(sent(fixture, "copycat"), honest_payloads(fixture)[:2], strict=True)
    for copied, honest in pairs:
        assert alike(copied, honest)


def test_noise_is_like_an_honest_payload_at_other_places(fixture: Fixture) -> None:
    honest = honest_payloads(fixture)[0]
    for random in sent(fixture, "random"):
        assert np.array_equal(random.counts, honest.counts)
        assert shared_places(random.votes, honest.votes) < 0.2
        assert np.allclose(np.sort(np.abs(random.momenta)), np.sort(np.abs(honest.momenta)))
        assert (np.diff(random.indices[: random.counts[0]].astype(int)) > 0).all()


def test_a_stale_author_repeats_its_payload_until_the_tenth_round(fixture: Fixture) -> None:
    ring, honest = Ring(fixture, case("stale")), honest_payloads(fixture)[:6]
    first, later, tenth = (
        ring.payloads(number, shares_of(fixture, number)[6:], honest)[0] for number in (0, 9, 10)
    )
    assert alike(first, later)
    assert not alike(first, tenth)


def test_half_work_and_a_poisoned_order_are_honest_payloads_of_other_samples(
    fixture: Fixture,
) -> None:
    share, honest = shares_of(fixture, 0)[6], honest_payloads(fixture)[6]
    half = Author(fixture).payload(fixture.gradients(share[: len(share) // 2]))
    assert alike(sent(fixture, "half work")[0], half)
    assert not alike(half, honest)
    ring = Ring(fixture, case("poisoned order"))
    one, other = ring.payloads(0, shares_of(fixture, 0)[6:], [])
    assert not alike(one, other)
    assert alike(sent(fixture, "poisoned order", number=1)[0], one), "the same in every round"


def test_without_a_bound_a_boast_outweighs_all_and_as_a_vote_it_is_one(fixture: Fixture) -> None:
    honest = honest_payloads(fixture)
    boast = boasting(honest[0])
    whole = with_magnitudes(honest, [boast])
    assert max(int(np.abs(each.values).max()) for each in whole[:-1]) == 127
    assert np.abs(whole[-1].values).max() > BOAST / 2 * 127 / AUTHORS
    assert np.abs(boast.votes.values).max() == 1
    assert np.array_equal(boast.votes.values, honest[0].votes.values)


# ---- the auditor


def shape_of(fixture: Fixture) -> PayloadShape:
    return PayloadShape(fixture.layout.chunks, fixture.cell.top_k, 1)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Begin]:
    """Begins cases, and closes them."""
    begun: list[Trial] = []

    def begin(fixture: Fixture, which: Case) -> Trial:
        notes = tmp_path / str(len(begun))
        notes.mkdir()
        begun.append(Trial(fixture, which, notes))
        return begun[-1]

    yield begin
    for each in begun:
        each.close()


def test_flippers_and_a_ring_have_no_vote_after_two_rounds_and_the_honest_keep_theirs(
    fixture: Fixture, trial: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "OPPOSED_COMPARED", 128)  # so small, no payload has more
    attacks: tuple[Attack, ...] = ("sign flip", "collusion")
    for attack in attacks:
        found = trial(fixture, case(attack, "audited"))
        found.step(0)
        assert found.result.removed == {6: (2, 1), 7: (2, 1)}
        found.step(1)
        found.step(2)
        assert found.result.removed.keys() == {6, 7}
        votes = trial(fixture, case(attack))
        votes.step(0)
        assert not votes.result.removed


def test_an_author_that_repeats_itself_has_no_vote_after_its_third_copy_and_a_round(
    fixture: Fixture, trial: Begin
) -> None:
    found = trial(fixture, case("stale", "audited"))
    for number in range(4):
        assert found.result.removed == {}
        found.step(number)
    assert found.result.removed == {6: (5, 3), 7: (5, 3)}


def test_a_copycat_of_the_first_round_has_no_vote_after_it_and_another_and_its_source_has(
    fixture: Fixture, trial: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "CROSS_ODDS", 4)  # so small, gradients differ in few places
    found = trial(fixture, case("copycat", "audited"))
    found.step(0)
    assert found._auditor is not None
    assert {author for _, author, _ in found._auditor.audits} >= {0, 1, 6, 7}
    assert found.result.removed == {6: (2, 1), 7: (2, 1)}


def test_audits_keep_to_their_part_of_the_compute(fixture: Fixture, tmp_path: Path) -> None:
    auditor = Auditor(tiny_spec(), shape_of(fixture), 0, tmp_path)
    payloads = {author: each.votes for author, each in enumerate(honest_payloads(fixture))}
    rounds = range(EARLY_ROUNDS, EARLY_ROUNDS + 100)
    for number in rounds:
        commit = auditor._commit(number, payloads)
        found = auditor._work(commit, frozenset(), lambda author: Agreement(1000, 900))
        assert not found
    auditor.close()
    assert len(auditor.audits) <= AUDIT_BUDGET * AUTHORS * len(rounds) + 4
    assert {author for _, author, _ in auditor.audits} <= {*range(AUTHORS)}


def test_authors_that_leave_are_gone_after_two_rounds(corpus: Corpus, trial: Begin) -> None:
    fixture = Fixture(SMALL, cell_of(0, steps=4), corpus)
    found = trial(fixture, case("leaving"))
    shares = shares_of(fixture, 0)
    honest = [Author(fixture).payload(fixture.gradients(share)) for share in shares[6:]]
    sent = found._hostile(0, shares, [])
    assert all(alike(one, other) for one, other in zip(sent.values(), honest, strict=True))
    assert found._hostile(LEAVING_ROUNDS, shares, []) == {}


def test_a_case_ends_with_its_loss_and_counts_only_the_votes_of_its_authors(
    corpus: Corpus, trial: Begin
) -> None:
    ends = {}
    for attack, hostile in (("none", 2), ("none", 3), ("sign flip", 2)):
        fixture = Fixture(SMALL, cell_of(0, steps=3), corpus)
        ends[attack, hostile] = trial(fixture, case(attack, hostile=hostile)).run()
    losses = {each.nats_per_byte for each in ends.values()}
    assert len(losses) == 3
    assert None not in losses


def test_honest_authors_that_come_back_with_an_old_momentum_are_far_from_turned_signs(
    corpus: Corpus, trial: Begin
) -> None:
    fixture = Fixture(SMALL, cell_of(0, steps=24), corpus)
    found, late = trial(fixture, case("none")), Author(fixture)
    agreements = []
    for number in range(24):
        share = shares_of(fixture, number)[7]
        if number < 3 or number >= 16:  # it is away for thirteen rounds, and its momentum is old
            gradients = fixture.gradients(share)
            agreements.append(found._agreement(late.payload(gradients), gradients).share)
        found.step(number)
    assert min(agreements) > 2 * DEMO.opposed / WHOLE


# ---- what is kept


def ended(each: Case, nats: float | None, removed: dict[int, tuple[int, int]]) -> Result:
    return Result(each, nats, "" if nats else "round 3: NaN", removed)


def test_a_row_is_behind_its_own_clean_run_and_says_when_attackers_were_removed() -> None:
    found = [
        ended(Case("none", 2, "votes", 0), 2.0, {}),
        ended(Case("none", 2, "votes", 1), 3.0, {}),
        ended(Case("none", 1, "votes", 0), 9.0, {}),
        ended(Case("sign flip", 2, "audited", 0), 2.1, {6: (16, 2), 7: (24, 3)}),
        ended(Case("sign flip", 2, "audited", 1), 3.3, {6: (16, 2), 0: (16, 2)}),
        ended(Case("copycat", 2, "audited", 1), 3.0, {6: (1, 1), 7: (1, 1)}),
        ended(Case("random", 2, "votes", 0), None, {}),
        ended(Case("random", 3, "votes", 0), 4.0, {}),
    ]
    flip, random, copied = kept.rows(found)
    assert flip["behind"] == {"mean": 0.2, "least": 0.1, "most": 0.3, "ci95": 1.2706}
    assert (flip["seeds"], flip["attackers"], flip["removed"]) == ([0, 1], 4, 3)
    assert (flip["rounds"], flip["audits"], flip["honest_removed"]) == (16, 2, 1)
    assert (copied["rounds"], copied["honest_removed"]) == (1, 0)
    assert random["blew_up"] == 1
    assert "behind" not in random


def test_results_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    result = ended(Case("stale", 3, "audited", 2), 2.5, {5: (11, 2)})
    result.audits = [(7, 0, 0.91), (7, 5, 0.5)]
    kept.write(tmp_path / "attack.json", [result])
    assert kept.read(tmp_path / "attack.json") == [result]
    assert kept.read(tmp_path / "none.json") == []
    found = json.loads((tmp_path / "attack.json").read_bytes())
    assert found["agreement"]["stale"] == {"audits": 1, "least": 0.5, "median": 0.5, "most": 0.5}


def test_the_committed_rows_are_those_of_the_committed_cases() -> None:
    path = Path("docs/results/data/attack.json")
    found = json.loads(path.read_bytes())
    assert found["rows"] == kept.rows(kept.read(path))
    quarter = [row for row in found["rows"] if row["hostile"] == 2]
    assert {(row["attack"], row["defence"]) for row in quarter} == {
        (attack, defence) for attack in ATTACKS for defence in kept.DEFENCES
    }
