"""The headline's ground is honest: documents do not cross splits, all methods are tuned alike, and
the test split is looked at once.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from node.data.corpus import Corpus
from node.data.tokenizer import ByteTokenizer
from protocol.errors import DataError, SettingsError
from tests.benchmarks.headline import look as looking
from tests.benchmarks.headline import study, texts
from tests.benchmarks.headline.study import (
    FIRST,
    FULL,
    FULL_SECOND,
    GROUNDS,
    HEADLINE,
    LONG,
    ORDER,
    RATES,
    SEEDS,
    SHORTER,
    Finished,
    Ground,
    Job,
    Method,
    cell,
    waiting,
)
from tests.benchmarks.headline.texts import prepare_text, split_by_document, token_bytes
from tests.benchmarks.headline.train import TextFixture, finished, judged, train_job
from tests.benchmarks.pages import headline as page
from tests.benchmarks.pages.headline import shown
from tests.benchmarks.parity.comparison import Difference
from tests.benchmarks.parity.results import Point, Result
from tests.benchmarks.records import read_records


def documents(count: int, size: int = 2000) -> Iterator[tuple[str, str]]:
    for number in range(count):
        yield f"file{number}", f"document {number} says {number * 7919} and 'äöü'.\n" * (size // 40)


def ended(job: Job, bits_per_byte: float) -> Finished:
    points = Point(0, 0, 8.0, 0, 0), Point(job.cell.steps, 100, bits_per_byte, 10_000, 30_000)
    return Finished(job, Result(job.cell, job.task, "c0", 100_000, 1.0, "a machine", points))


def swept() -> list[Finished]:
    """A sweep whose second and third rates are best."""
    place = {job: RATES[job.method].index(job.cell.learning_rate) for job in study.sweep([], FIRST)}
    return [ended(job, 3.0 + abs(at - 1.4)) for job, at in place.items()]


# ---- texts


def test_a_document_is_in_one_split_and_stays_there_when_others_come() -> None:
    few, many = split_by_document(documents(40)), split_by_document(documents(80))
    assert all(few.values())
    for split, found in few.items():
        assert set(found) <= set(many[split])
    assert len({text for found in many.values() for text in found}) == 80


def test_long_documents_are_cut_and_equal_and_tiny_ones_left_out() -> None:
    long = "x" * 100_000
    found = split_by_document([("a", long), ("b", long), ("c", "tiny")])
    assert [len(text) for split in found.values() for text in split] == [texts.DOCUMENT_BYTES_MAX]


def test_too_little_text_to_judge_by_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected validation text of at least 1,000,000 bytes"):
        prepare_text("few", documents(40), tmp_path, subwords=False)


def prepared(directory: Path, name: str, *, subwords: bool) -> Corpus:
    source = documents(400)
    prepare_text(name, source, directory, subwords=subwords, bytes_min=100, documents_min=3)
    return Corpus.open(directory / name, verify=True)


def test_bits_are_counted_by_the_bytes_of_the_text(tmp_path: Path) -> None:
    corpus = prepared(tmp_path, "sub", subwords=True)
    sizes, text = token_bytes(corpus.tokenizer), "document 5 says 'äöü'."
    assert sizes[corpus.tokenizer.encode(text)].sum() == len(text.encode())
    assert sizes[corpus.tokenizer.document_end] == 0
    assert (token_bytes(ByteTokenizer()) == [1] * 256 + [0]).all()


# ---- the study


def test_every_method_is_tuned_over_equally_many_rates_a_factor_of_two_apart() -> None:
    assert len({len(rates) for rates in RATES.values()}) == 1
    for rates in RATES.values():
        assert np.allclose(np.divide(rates[1:], rates[:-1]), 2)


def test_every_method_sees_the_same_tokens_and_share_of_warm_up() -> None:
    for method, rates in RATES.items():
        job = Job("library", method, cell(method, rates[0], 0))
        assert job.ground == FIRST
        assert job.task.tokens(job.cell.steps) == study.TASKS["library"].tokens(study.STEPS)
        assert job.cell.warmup_steps / job.cell.steps == pytest.approx(2 / 15)
        assert job.cell.authors == study.AUTHORS
        for ground in GROUNDS:
            made = cell(method, rates[0], 0, ground.steps, ground.authors)
            assert Job(ground.text, method, made).ground == ground
            assert made.warmup_steps / made.steps == pytest.approx(2 / 15, abs=0.003)
            assert made.authors == ground.authors


def test_the_best_rate_on_the_validation_split_gets_the_other_seeds() -> None:
    found: list[Finished] = []
    trained: list[Job] = []
    while left := study.waiting(found):
        trained.append(left[0])
        at = RATES[left[0].method].index(left[0].cell.learning_rate)
        found.append(ended(left[0], 3.0 + abs(at - 2)))  # the third rate is best
        assert len(trained) < 1000
    short, long, full = 3 * (4 + 2) + 3 * (3 + 2), 3 + 2, 2 * 3 * (3 + 2)
    assert len(trained) == len(set(trained)) == short + long + full
    more = [job for job in trained if job.cell.seed]
    assert {job.cell.seed for job in more} == {*SEEDS[1:]}
    assert all(job.cell.learning_rate == RATES[job.method][2] for job in more)
    for ground in HEADLINE:
        ends = {(job.method, job.cell.seed) for job in trained if job.ground == ground}
        assert ends == {(method, seed) for method in _TRAINED for seed in SEEDS}
    order = [
        next(at for at, (ground, methods) in enumerate(ORDER) if _in(job, ground, methods))
        for job in trained
    ]
    assert order == sorted(order)


def _in(job: Job, ground: Ground, methods: tuple[Method, ...]) -> bool:
    return job.ground == ground and job.method in methods


_TRAINED: tuple[Method, ...] = ("local_steps", "muon", "adamw")


def trained_on(ground: Ground, best: dict[Method, int]) -> list[Finished]:
    """Sweeps of a ground of which a rate is best, by its place; those beside it are there too."""
    found = []
    for method, place in best.items():
        for beside in (place - 1, place, place + 1):
            rate = RATES[method][0] * 2.0**beside
            made = cell(method, rate, SEEDS[0], ground.steps, ground.authors)
            found.append(ended(Job(ground.text, method, made), 3.0 + abs(beside - place)))
    return found


def test_the_longest_training_begins_with_the_best_rate_of_the_longest_before_it() -> None:
    found = [*swept(), *trained_on(LONG, {"default": 0, "local_steps": 0})]
    before = {"default": 0, "local_steps": 0, "muon": 1, "adamw": 1}
    assert study.begun_with(found, FULL) == {
        method: (RATES[method][0] * 2.0**place / 2, RATES[method][0] * 2.0**place)
        for method, place in before.items()
    }
    assert study.begun_with(found, FULL_SECOND) == {}
    found += trained_on(FULL, {"default": -1})
    best = RATES["default"][0] / 2
    assert study.begun_with(found, FULL_SECOND) == {"default": (best / 2, best)}


def test_each_text_waits_for_its_own_cells_and_the_second_for_rates_of_the_first() -> None:
    found = [*swept(), *trained_on(LONG, {"default": 0, "local_steps": 0})]
    found += [ended(job, 3.1) for job in (*study.finals(found, FIRST), *study.finals(found, LONG))]
    assert {job.ground for job in waiting(found, "library")} == {FULL}
    assert {job.ground for job in waiting(found, "manual")} == {study.SECOND}
    found += trained_on(FULL, {"default": -1, "local_steps": -1})
    assert {(job.ground, job.method) for job in waiting(found, "manual")} == {
        (FULL_SECOND, "local_steps")
    }, "the former default is a record"
    assert {job.cell.seed for job in waiting(found, "library")} == {*SEEDS[1:]}


def test_the_kept_cells_of_shorter_trainings_have_the_names_and_settings_of_their_grounds() -> None:
    kept = [each.finished.job for each in looking.read_cells()]
    known = {*study.possible()}
    assert all(job in known for job in kept if job.ground in SHORTER)
    assert {job.cell.authors for job in kept if job.ground in SHORTER} == {study.AUTHORS}
    assert all("authors" not in job.name for job in known if job.ground in SHORTER)
    assert all("authors=8" in job.name for job in known if job.ground in HEADLINE)


def test_a_longer_training_is_tuned_from_the_best_rate_of_the_short_one_on() -> None:
    found = swept()
    best = study.best_rates(found, FIRST)
    for job in study.sweep(found, LONG):
        assert job.cell.learning_rate in (best[job.method], best[job.method] / 2)
    for sign, beyond in ((-1, 2), (1, 1 / 4)):
        tried = [
            ended(job, 3.0 + sign * job.cell.learning_rate) for job in study.sweep(found, LONG)
        ]
        more = study.beyond([*found, *tried], LONG)
        assert {job.cell.learning_rate / best[job.method] for job in more} == {beyond}
        tried += [ended(job, 4.0) for job in more]
        assert study.beyond([*found, *tried], LONG) == []
        assert study.best_rates([*found, *tried], LONG) == {
            method: best[method] / (2 if sign > 0 else 1) for method in ("default", "local_steps")
        }


def test_a_sweep_goes_on_beyond_an_end_that_is_best() -> None:
    found = [ended(job, 3.0 + job.cell.learning_rate) for job in study.sweep([], FIRST)]
    assert study.best_rates(found, FIRST) == {}
    grown = study.beyond(found, FIRST)
    assert [job.cell.learning_rate for job in grown] == [rates[0] / 2 for rates in RATES.values()]
    assert study.waiting(found) == [job for job in grown if not job.cell.is_record]
    found += [ended(job, 4.0) for job in grown]
    assert study.best_rates(found, FIRST) == {m: rates[0] for m, rates in RATES.items()}


def test_a_rate_that_blew_up_is_not_the_best() -> None:
    found = swept()
    first = next(each for each in found if each.job.cell == cell("muon", RATES["muon"][1], 0))
    assert study.best_rates(found, FIRST)["muon"] == RATES["muon"][1]
    blown = Finished(first.job, replace(first.result, failure="step 3: NaN"))
    found = [blown if each.job == first.job else each for each in found]
    assert study.best_rates(found, FIRST)["muon"] == RATES["muon"][2]


# ---- training and the look


def test_a_cell_is_trained_kept_and_judged_with_the_parameters_it_ended_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(study, "TASKS", {name: _small(task) for name, task in study.TASKS.items()})
    for name, subwords in (("library", False), ("manual", True)):
        corpus = prepared(tmp_path / "texts", name, subwords=subwords)
        kind = (each for each in study.possible() if not each.cell.is_record)
        job = next(job for job in kind if job.text == name)
        job = replace(job, cell=replace(job.cell, steps=2, warmup_steps=1))
        done = train_job(job, corpus, tmp_path)
        fixture = TextFixture(job, corpus)
        before = fixture.bits_per_byte(fixture.validation)
        assert done.choosing < before < 12
        assert judged(job, tmp_path) == pytest.approx(done.choosing, rel=0.1)


def test_samples_may_come_twice_but_no_more_often(tmp_path: Path) -> None:
    corpus = prepared(tmp_path / "texts", "library", subwords=False)
    made = cell("muon", 0.01, 0)
    job = Job("library", "muon", made)
    once = corpus.samples(job.task.sequence_length) // job.task.batch_samples
    for passes, allowed in ((1, True), (1.9, True), (2.1, False)):
        longer = replace(job, cell=replace(made, steps=int(once * passes)))
        if allowed:
            TextFixture(longer, corpus)
        else:
            with pytest.raises(SettingsError, match="each of the text 2 times at most"):
                TextFixture(longer, corpus)


def _small(task: study.Task) -> study.Task:
    return replace(task, layers=1, hidden=32, sequence_length=32, validation_samples=16)


def test_a_finished_cell_is_found_and_one_of_another_task_refused(tmp_path: Path) -> None:
    from tests.benchmarks.parity.results import save

    job, kept = study.sweep([], FIRST)[:2]
    save(tmp_path / "library", ended(job, 3.0).result)
    assert finished(tmp_path) == [ended(job, 3.0)]
    assert finished(tmp_path, [ended(kept, 3.1)]) == [ended(kept, 3.1), ended(job, 3.0)]
    odd = replace(ended(job, 3.0).result, task=replace(job.task, hidden=128))
    save(tmp_path / "library", odd)
    with pytest.raises(DataError, match="expected a result of"):
        finished(tmp_path)


def test_the_test_split_is_looked_at_once_and_it_is_recorded(tmp_path: Path) -> None:
    found = swept()
    looking.look(found, lambda job: 3.5, "today", data=tmp_path)
    (record,) = read_records(tmp_path / looking.LOOKS)
    assert (record["text"], record["when"], len(record["cells"])) == ("library", "today", 5)
    looking.look(found, lambda job: 1 / 0, "tomorrow", data=tmp_path)  # nothing new to look at
    more = [*found, *(ended(job, 3.1) for job in study.finals(found, FIRST)[5:])]
    with pytest.raises(SettingsError, match="nobody has looked at, got one of today"):
        looking.look(more, lambda job: 3.4, "tomorrow", data=tmp_path)
    looking.look(more, lambda job: 3.4, "tomorrow", data=tmp_path, again="more seeds")
    first, second = read_records(tmp_path / looking.LOOKS)
    assert (first["why"], second["why"]) == ("", "more seeds")
    assert not {*first["cells"]} & {*second["cells"]}, "a cell is judged once"


def test_the_headline_counts_bytes_as_they_travel(tmp_path: Path) -> None:
    found = swept()
    looking.look(found, lambda job: 3.5, "today", data=tmp_path)
    rows = {row["method"]: row for row in looking.rows(looking.read_cells(tmp_path))}
    assert rows["muon"]["bytes_up"] == study.STEPS * 2 * 3 / 4 * 2 * 100_000
    assert rows["default"]["bytes_up"] == rows["default"]["bytes_down"] == 3 * 10_000
    assert rows["default"]["ci95"] is None
    assert looking.half_width([1.0, 2.0, 3.0]) == pytest.approx(4.303 / 3**0.5, abs=1e-4)


def test_the_committed_headline_is_that_of_its_cells_and_looks() -> None:
    cells = looking.read_cells()
    rows = json.loads((looking.DATA / looking.ROWS).read_bytes())["rows"]
    assert rows == looking.rows(cells)
    judged_cells = {each.finished.job.name for each in cells if each.test_bits_per_byte}
    looks = read_records(looking.DATA / looking.LOOKS)
    assert judged_cells == {name for look in looks for name in look["cells"]}
    unasked = [each["text"] for each in looks if not each["why"]]
    assert len(set(unasked)) == len(unasked), "every look after a text's first one has a reason"


def test_eight_authors_send_and_receive_seven_payloads_and_a_longer_ring() -> None:
    found = []
    for ground in (FIRST, FULL):
        for method in ("default", "muon"):
            made = cell(method, RATES[method][0], 0, ground.steps, ground.authors)
            done = ended(Job(ground.text, method, made), 3.0)
            last = replace(done.result.last, up_bytes=1000 * ground.steps)
            points = (done.result.points[0], last)
            result = replace(done.result, points=points)
            found.append(looking.Judged(Finished(done.job, result), 3.0))
    rows = {(row["method"], row["authors"]): row for row in looking.rows(found)}
    assert rows["default", 4]["bytes_up"] == 3 * 1000 * 150
    assert rows["default", 8]["bytes_up"] == 7 * 1000 * 2000
    assert rows["muon", 8]["bytes_up"] == 2 * 7 / 8 * 2 * 100_000 * 2000
    assert [row["steps"] for row in rows.values()] == [150, 150, 2000, 2000]


def test_the_curves_end_with_what_local_steps_are_behind_at_each_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for method, behind in (("default", 0.0), ("local_steps", 0.1)):
        for seed in (0, 1):
            made = cell(method, 0.01, seed, FULL.steps, FULL.authors)
            job = Job(FULL.text, method, made)
            points = tuple(
                Point(step, 0, 5.0 - step / 1000 + behind * (1 + seed), 9, 9)
                for step in (0, 1000, 2000)
            )
            result = replace(ended(job, 3.0).result, points=points)
            found.append(looking.Judged(Finished(job, result), 3.0))
    monkeypatch.setattr(page, "cells", lambda: found)
    assert [line.split(" | ")[2:] for line in page.curves().splitlines()[2:]] == [
        ["4.000", "3.000 |"],
        ["4.150", "3.150 |"],
        ["+0.150 ± 0.635", "+0.150 ± 0.635 |"],
    ]


def test_a_pair_is_told_on_the_ground_on_which_it_was_expected() -> None:
    assert set(study.EXPECTED) == set(GROUNDS)
    assert not set(HEADLINE) & set(SHORTER)
    for pairs in study.EXPECTED.values():
        assert {method for pair in pairs for method in pair} <= set(RATES)


def test_an_interval_around_nothing_shows_nothing() -> None:
    assert shown(Difference((-0.1, -0.11, -0.12))) == "ahead"
    assert shown(Difference((0.1, 0.11, 0.12))) == "behind"
    assert shown(Difference((0.1, -0.1, 0.05))) == shown(Difference((-0.5,))) == "nothing"
