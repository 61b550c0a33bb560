"""The attack study: attackers send what their names say, and the auditor removes by what it saw."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.presets import run_of
from node.data.corpus import Corpus
from node.exact.sign_audit import Agreement, shared_places
from protocol.audit import rule
from protocol.audit.rule import EARLY_ROUNDS
from protocol.audit.thresholds import LOCAL_STEPS
from protocol.codec.evidence import WHOLE
from protocol.codec.payload import Coefficients, PayloadShape
from protocol.codec.scales import CODE_MAX
from tests.benchmarks.attack import results as kept
from tests.benchmarks.attack.auditor import Auditor
from tests.benchmarks.attack.cases import (
    ATTACKS,
    AUDIT_BUDGET,
    AUTHORS,
    BOASTERS,
    FOUND_EARLY,
    HOSTILE,
    LEAVING_ROUNDS,
    PARAMETERS,
    SEEDS,
    SHADOWS,
    TASK,
    Attack,
    Case,
    Defence,
    cases,
    cell_of,
)
from tests.benchmarks.attack.payloads import Shadow, boasting, turned
from tests.benchmarks.attack.ring import Ring, Scene, shares_of
from tests.benchmarks.attack.trial import Result, Trial
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.work_audit.local_steps import Author, Batches, part_of
from tests.support.tiny import tiny_corpus

Begin = Callable[[Fixture, Case], Trial]

SMALL = replace(TASK, layers=1, hidden=32, sequence_length=16, validation_samples=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    directory = tmp_path_factory.mktemp("corpus")
    tiny_corpus(directory)
    return Corpus.open(directory)


@pytest.fixture
def fixture(corpus: Corpus) -> Fixture:
    return Fixture(SMALL, cell_of(0, rounds=4), corpus)


def case(attack: Attack, defence: Defence = "median", hostile: int = 2) -> Case:
    return Case(attack, hostile, defence, 0)


RATE = 0.01
CAP = 150
"""Code of the largest scale that counts."""


def trained(fixture: Fixture, batches: Batches) -> Coefficients:
    """The first payload of an author."""
    genesis = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
    sent = Author(fixture).train(genesis, batches, RATE)
    for name, tensor in fixture.parameters.items():
        tensor.copy_(genesis[name])
    return sent


def honest_payloads(fixture: Fixture) -> list[Coefficients]:
    """The first payloads of all authors."""
    return [trained(fixture, share) for share in shares_of(fixture, 0)]


def scene(fixture: Fixture, honest: list[Coefficients], number: int = 0) -> Scene:
    genesis = {name: tensor.clone() for name, tensor in fixture.parameters.items()}
    return Scene(number, genesis, shares_of(fixture, number)[6:], honest[:6], RATE, CAP)


def sent(fixture: Fixture, attack: Attack, honest: list[Coefficients]) -> list[Coefficients]:
    """The first payloads of two attackers beside six honest authors."""
    found = scene(fixture, honest)
    made = Ring(fixture, case(attack)).payloads(found)
    for name, tensor in fixture.parameters.items():
        tensor.copy_(found.committed[name])
    return made


def alike(one: Coefficients, other: Coefficients, *, scales: bool = True) -> bool:
    names = ("counts", "indices", "values", *(("scales",) if scales else ()))
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in names)


# ---- the cases


def test_every_case_is_there_and_has_the_clean_run_that_it_is_compared_with() -> None:
    listed = list(dict.fromkeys(cases()))
    assert len({each.name for each in listed}) == len(listed)
    attacked = [each for each in listed if each.attack in ATTACKS]
    quarter = [each for each in attacked if each.hostile == 2]
    bounds = 2 * len(BOASTERS) + len(FOUND_EARLY)
    assert len(quarter) == len(ATTACKS) * len(SEEDS) + bounds
    assert {each.hostile for each in attacked if each.defence == "audited"} == {*HOSTILE}
    assert all(each.clean in listed for each in attacked)
    assert {each.hostile for each in listed if each.attack == "leaving"} == {*HOSTILE}


def test_the_network_is_as_large_as_the_page_says(corpus: Corpus) -> None:
    assert Fixture(TASK, cell_of(0, rounds=1), corpus).layout.parameters == PARAMETERS


# ---- what attackers send


def test_attackers_send_what_their_names_say(fixture: Fixture) -> None:
    honest, shares = honest_payloads(fixture), shares_of(fixture, 0)
    for boast, own in zip(sent(fixture, "boast", honest), honest[6:], strict=True):
        assert alike(boast, own, scales=False)
    for flipped, own in zip(sent(fixture, "sign flip", honest), honest[6:], strict=True):
        assert alike(flipped, turned(own), scales=False)
    one, other = sent(fixture, "collusion", honest)
    assert alike(one, other)
    batches = [np.concatenate(pair) for pair in zip(*shares[6:], strict=True)]
    assert alike(turned(one), trained(fixture, batches), scales=False)
    for copied, source in zip(sent(fixture, "copycat", honest), honest[:2], strict=True):
        assert alike(copied, source)
    half = [trained(fixture, part_of(share, 0.5)) for share in shares[6:]]
    for found, own, whole in zip(sent(fixture, "half work", honest), half, honest[6:], strict=True):
        assert alike(found, own)
        assert not alike(found, whole, scales=False)


def test_attackers_say_the_largest_scales_where_they_gain_by_it(fixture: Fixture) -> None:
    honest = honest_payloads(fixture)
    for attack in ATTACKS:
        largest = []
        for found in sent(fixture, attack, honest):
            assert found.scales is not None
            largest.append(int(found.scales.max()))
        is_largest = all(code == CAP for code in largest)
        assert is_largest is (attack in BOASTERS or attack in SHADOWS), attack


def test_a_shadow_turns_the_signs_that_weigh_most_and_says_next_to_nothing_elsewhere(
    fixture: Fixture,
) -> None:
    own = honest_payloads(fixture)[0]
    found = Shadow(0.4, 0.1).made_of(own, CAP, 0)
    assert own.scales is not None
    assert found.scales is not None
    loud = found.scales == CAP
    assert (found.scales[~loud] == 0).all()
    assert own.scales[loud].min() >= own.scales[~loud].max()
    signs = np.repeat(np.where(loud, -1, 1), own.counts)
    assert np.array_equal(found.values, own.values * signs)
    assert 0.4 <= own.counts[loud].sum() / own.counts.sum() < 0.4 + 1 / loud.sum()
    later = Shadow(0.4, 0.1, "own", every=2)
    assert alike(later.made_of(own, CAP, EARLY_ROUNDS + 1), own)
    quiet = later.made_of(own, CAP, EARLY_ROUNDS)
    assert quiet.scales is not None
    assert 0 < np.count_nonzero(quiet.scales != own.scales) < np.count_nonzero(loud)


def test_a_boast_says_nothing_where_there_is_nothing(fixture: Fixture) -> None:
    own = honest_payloads(fixture)[0]
    own.counts[0] = 0
    found = boasting(own, CODE_MAX).scales
    assert found is not None
    assert own.scales is not None
    assert found[0] == 0
    assert (found[1:] == own.scales[1:] + 24).all(), "64 times"


def test_noise_is_like_an_honest_payload_at_other_places(fixture: Fixture) -> None:
    honest = honest_payloads(fixture)
    for random in sent(fixture, "random", honest):
        assert np.array_equal(random.counts, honest[0].counts)
        assert shared_places(random, honest[0]) < 0.2
        assert (np.diff(random.indices[: random.counts[0]].astype(int)) > 0).all()


def test_some_attackers_send_the_same_again(fixture: Fixture) -> None:
    honest = honest_payloads(fixture)
    stale = Ring(fixture, case("stale"))
    first, second = (stale.payloads(scene(fixture, honest, number))[0] for number in (0, 1))
    tenth = stale.payloads(replace(scene(fixture, honest, 1), number=10))[0]
    assert alike(first, second)
    assert not alike(first, tenth)
    one, other = sent(fixture, "poisoned order", honest)
    assert not alike(one, other)
    again = Ring(fixture, case("poisoned order")).payloads(scene(fixture, honest, number=1))
    assert alike(again[0], one), "the same samples in every round"


# ---- the auditor


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


def test_flippers_and_a_ring_do_not_count_after_two_rounds_and_the_honest_do(
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
        alone = trial(fixture, case(attack))
        alone.step(0)
        assert not alone.result.removed


def test_an_author_that_repeats_itself_does_not_count_after_its_third_copy_and_a_round(
    fixture: Fixture, trial: Begin
) -> None:
    found = trial(fixture, case("stale", "audited"))
    for number in range(4):
        assert found.result.removed == {}
        found.step(number)
    assert found.result.removed == {6: (5, 3), 7: (5, 3)}


def test_a_copycat_of_the_first_round_does_not_count_after_another_and_its_source_does(
    fixture: Fixture, trial: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rule, "CROSS_ODDS", 4)  # so small, gradients differ in few places
    found = trial(fixture, case("copycat", "audited"))
    found.step(0)
    assert found._auditor is not None
    assert {author for _, author, _ in found._auditor.audits} >= {0, 1, 6, 7}
    assert found.result.removed == {6: (2, 1), 7: (2, 1)}


def test_audits_keep_to_their_part_of_the_compute(fixture: Fixture, tmp_path: Path) -> None:
    shape = PayloadShape(fixture.layout.chunks, fixture.cell.top_k, 1, scaled=True)
    auditor = Auditor(run_of("local_steps"), shape, 0, tmp_path)
    payloads = dict(enumerate(honest_payloads(fixture)))
    rounds = range(EARLY_ROUNDS, EARLY_ROUNDS + 100)
    for number in rounds:
        commit = auditor._commit(number, payloads, 10, RATE)
        found = auditor._work(commit, frozenset(), lambda author: Agreement(1000, 0.9))
        assert not found
    auditor.close()
    assert auditor.audits
    assert len(auditor.audits) <= AUDIT_BUDGET * AUTHORS * len(rounds) + 4
    assert {author for _, author, _ in auditor.audits} <= {*range(AUTHORS)}


def test_authors_that_leave_are_gone_after_two_rounds(fixture: Fixture, trial: Begin) -> None:
    found = trial(fixture, case("leaving"))
    shares = shares_of(fixture, 0)
    honest = honest_payloads(fixture)
    sent = found._hostile(0, shares, RATE, [])
    assert all(alike(one, other) for one, other in zip(sent.values(), honest[6:], strict=True))
    assert found._hostile(LEAVING_ROUNDS, shares, RATE, []) == {}


@pytest.mark.slow
def test_a_case_ends_with_its_loss_and_the_bounds_tell(corpus: Corpus, trial: Begin) -> None:
    ends = {}
    for each in (
        case("none"),
        case("none", hostile=3),
        case("sign flip", "unbounded"),
        case("sign flip", "reach"),
        case("sign flip", "median"),
    ):
        fixture = Fixture(SMALL, cell_of(0, rounds=3), corpus)
        ends[each] = trial(fixture, each).run().nats_per_byte
    assert len({*ends.values()}) == len(ends)
    assert None not in ends.values()


@pytest.mark.slow
def test_honest_authors_that_come_back_with_an_old_residual_are_far_from_turned_signs(
    corpus: Corpus, trial: Begin
) -> None:
    fixture = Fixture(SMALL, cell_of(0, rounds=24), corpus)
    found, late = trial(fixture, case("none")), Author(fixture)
    agreements = []
    for number in range(24):
        share = shares_of(fixture, number)[7]
        if number < 3 or number >= 16:  # it is away for thirteen rounds, and its residual is old
            sent = {7: late.train(found.committed, share, RATE)}
            weights = found._weights(sent, RATE)[7]
            agreements.append(found._agreement(sent[7], share, RATE, weights).share)
        found.step(number)
    assert min(agreements) > LOCAL_STEPS.opposed / WHOLE


# ---- what is kept


def ended(each: Case, nats: float | None, removed: dict[int, tuple[int, int]]) -> Result:
    return Result(each, nats, "" if nats else "round 3: NaN", removed)


def test_a_row_is_behind_its_own_clean_run_and_says_when_attackers_were_removed() -> None:
    found = [
        ended(Case("none", 2, "median", 0), 2.0, {}),
        ended(Case("none", 2, "median", 1), 3.0, {}),
        ended(Case("none", 1, "median", 0), 9.0, {}),
        ended(Case("sign flip", 2, "audited", 0), 2.1, {6: (16, 2), 7: (24, 3)}),
        ended(Case("sign flip", 2, "audited", 1), 3.3, {6: (16, 2), 0: (16, 2)}),
        ended(Case("copycat", 2, "audited", 1), 3.0, {6: (1, 1), 7: (1, 1)}),
        ended(Case("random", 2, "median", 0), None, {}),
        ended(Case("random", 3, "median", 0), 4.0, {}),
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
    audited = [row for row in found["rows"] if row["defence"] == "audited"]
    assert {(row["attack"], row["hostile"]) for row in audited} == {
        (attack, hostile) for attack in ATTACKS for hostile in HOSTILE
    }
    by_bound = {(row["attack"], row["defence"]) for row in found["rows"]}
    assert {(attack, bound) for attack in BOASTERS for bound in ("unbounded", "reach")} <= by_bound
