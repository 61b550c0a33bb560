"""The attack study: attackers send what their names say, and the auditor removes by what it saw."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.data.corpus import Corpus
from node.demo.sign_audit import shared_places
from tests.benchmarks.attack import results as kept
from tests.benchmarks.attack.cases import (
    ATTACKS,
    AUTHORS,
    BOAST,
    HOSTILE,
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
from tests.benchmarks.attack.trial import Result, Trial, copies, thresholds
from tests.benchmarks.parity.task import Fixture
from tests.support.tiny import tiny_corpus

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


def test_every_case_is_there_once_and_has_the_clean_run_that_it_is_compared_with() -> None:
    listed = list(cases())
    assert len({each.name for each in listed}) == len(listed)
    attacked = [each for each in listed if each.attack != "none"]
    assert len(attacked) == len(ATTACKS) * len(HOSTILE) * len(SEEDS) * 3
    assert all(each.clean in listed for each in attacked)
    first = [each.attack for each in listed[: len(HOSTILE) * len(SEEDS)]]
    assert set(first) == {"none"}, "thresholds come from the clean runs"


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


def audited(number: int, shares: list[float], seed: int) -> Result:
    result = Result(Case("none", 2, "votes", seed))
    result.audits = [(number, author, share) for author, share in enumerate(shares)]
    return result


def test_a_threshold_comes_from_the_clean_runs_of_other_seeds() -> None:
    runs = [audited(7, [0.8, 0.9], 0), audited(7, [0.2, 0.3], 1)]
    assert thresholds(runs, seed=1) == {7: pytest.approx(0.85 - 4 * 0.05)}
    assert thresholds(runs[:1], seed=0) == {7: pytest.approx(0.85 - 4 * 0.05)}
    assert thresholds([audited(3, [0.9, 0.9], 0)], seed=1) == {3: pytest.approx(0.9 - 4 * 0.005)}


def test_shared_places_are_suspicious_between_two_authors_and_between_two_rounds(
    fixture: Fixture,
) -> None:
    one, other, third = honest_payloads(fixture)[:3]
    assert copies({0: one, 1: other, 2: third}, {}) == set()
    assert copies({0: one, 1: other, 2: one}, {}) == {0, 2}
    assert copies({0: one, 1: other}, {1: other, 2: third}) == {1}


def test_a_copycat_loses_its_vote_after_the_first_round_and_the_copied_keep_theirs(
    fixture: Fixture,
) -> None:
    trial = Trial(fixture, case("copycat", "audited"), {0: 0.999})
    trial.step(0)
    assert trial.result.removed == {6: (1, 1), 7: (1, 1)}
    trial.step(1)
    assert not {author for number, author, _ in trial.result.audits if number == 1} & {6, 7}


def test_a_flipper_is_removed_at_its_second_failed_audit_and_not_without_the_defence(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.benchmarks.attack.trial.COPY_SHARE", 2.0)  # so small, all look alike
    trial = Trial(replaced(fixture), case("sign flip", "audited"), {7: 0.6})
    for number in range(9):
        trial.step(number)
    assert trial.result.removed == {}
    assert all(share < 0.5 for share in trial.result.shares(hostile=True))
    assert all(share > 0.6 for share in trial.result.shares(hostile=False))
    trial.step(15)
    assert trial.result.removed == {6: (16, 2), 7: (16, 2)}
    votes = Trial(fixture, case("sign flip"), {7: 0.6})
    votes.step(7)
    assert not votes.result.audits


def replaced(fixture: Fixture) -> Fixture:
    """The same ground with a longer schedule."""
    return Fixture(SMALL, cell_of(0, steps=24), fixture.corpus)


def test_a_case_ends_with_its_loss_and_counts_only_the_votes_of_its_authors(
    corpus: Corpus,
) -> None:
    ends = {}
    for attack, hostile in (("none", 2), ("none", 3), ("sign flip", 2)):
        fixture = Fixture(SMALL, cell_of(0, steps=3), corpus)
        ends[attack, hostile] = Trial(fixture, case(attack, hostile=hostile), {}).run()
    losses = {each.nats_per_byte for each in ends.values()}
    assert len(losses) == 3
    assert None not in losses


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
    assert flip["rounds_at_budget"] == 100
    assert copied["rounds_at_budget"] == copied["rounds"] == 1
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
