"""A study of a short memory trains what it says, and keeps what it trained."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from node.data.corpus import Corpus
from protocol.errors import SettingsError
from tests.benchmarks.headline.study import SEEDS, TASKS, Finished, Job
from tests.benchmarks.headline.texts import prepare_text
from tests.benchmarks.headline.train import TextFixture
from tests.benchmarks.pages import short_memory as page
from tests.benchmarks.parity.local_steps import LocalStepsAuthors
from tests.benchmarks.parity.results import Point, Result, save
from tests.benchmarks.short_memory.keep import Kept, keep, left, read_cells
from tests.benchmarks.short_memory.light import LightAuthors
from tests.benchmarks.short_memory.study import (
    BLOCKS,
    MEAN_KEEPS,
    SHORT,
    TODAY,
    Rule,
    job,
    jobs,
    rule_of,
    waiting,
)
from tests.benchmarks.short_memory.train import Bench, CommitMean, Look

HERE = "c0"


class FakeBench(Bench):
    """A machine whose texts have one digest, and whose cells are figures."""

    def corpus(self, job: Job) -> str:
        return HERE

    def validation_of_mean(self, job: Job) -> float:
        return 1.9

    def look(self, job: Job, when: str) -> Look:
        return Look(1.8, 1.7, when)


def ended(job: Job, bits_per_byte: float = 2.0, corpus: str = HERE) -> Finished:
    points = Point(0, 0, 8.0, 0, 0), Point(job.cell.steps, 100, bits_per_byte, 10_000, 30_000)
    return Finished(job, Result(job.cell, job.task, corpus, 100_000, 1.0, "a machine", points))


def train(directory: Path, *done: Job) -> Bench:
    for each in done:
        save(directory / each.text, ended(each).result)
    return FakeBench(directory)


# ---- what is trained


def test_cells_are_trained_block_by_block_each_once_and_the_rule_with_all_seeds_on_both_texts() -> (
    None
):
    listed = jobs()
    assert len(set(listed)) == len(listed)
    assert listed[: len(BLOCKS[0].jobs)] == list(BLOCKS[0].jobs)
    for text in ("library", "manual"):
        for rule in (SHORT, TODAY):
            cells = [each for each in listed if (each.text, rule_of(each)) == (text, rule)]
            usual = {each.cell.seed for each in cells if each == job(text, rule, each.cell.seed)}
            assert usual == {*SEEDS}


def test_cells_of_todays_rule_are_those_of_the_headline() -> None:
    kept = {key.job for key, each in read_cells(Path("nowhere")).items() if each.look}
    assert kept == {job("library", TODAY, seed) for seed in SEEDS}


def test_what_cannot_be_judged_any_more_waits_behind_what_was_never_trained() -> None:
    first, second, *rest = jobs()
    assert waiting({first, second}, {second}) == [*rest, first]


def test_fade_and_gain_are_local_steps_alone_and_named() -> None:
    short = job("library", Rule(0.25, 3.0)).cell
    assert "-fade=0.25-gain=3.0-" in short.name
    assert "fade" not in job("library", TODAY).cell.name
    with pytest.raises(SettingsError, match="fade and gain of 1 with demo, got"):
        replace(short, method="demo", local_steps=1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    source = [
        (f"file{number}", f"document {number} says {number * 7919}.\n" * 80)
        for number in range(400)
    ]
    directory = tmp_path_factory.mktemp("texts")
    prepare_text("library", source, directory, subwords=False, bytes_min=100, documents_min=3)
    return Corpus.open(directory / "library")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network that is trained in a second."""
    task = replace(TASKS["library"], layers=1, hidden=32, sequence_length=32, validation_samples=16)
    monkeypatch.setitem(TASKS, "library", task)


def after_two_rounds(
    corpus: Corpus,
    rule: Rule,
    authors: int,
    *,
    lost: float = 0.0,
    make: type[LocalStepsAuthors] = LocalStepsAuthors,
) -> tuple[list[Tensor], CommitMean]:
    """The parameters at genesis and after each of two rounds, and the mean of both commits."""
    usual = job("library", rule, authors=authors, lost=lost)
    short = replace(usual, cell=replace(usual.cell, steps=4, local_steps=2, warmup_steps=0))
    fixture = TextFixture(short, corpus)
    authors_at_work = make(fixture)
    mean = CommitMean(fixture.parameters, 2)
    found = [_flat(authors_at_work.committed)]
    for step in range(4):
        authors_at_work.step()
        mean.watch(authors_at_work)
        if step % 2:
            found.append(_flat(authors_at_work.committed))
    return found, mean


def _flat(tensors: Mapping[str, Tensor]) -> Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors.values()])


@pytest.mark.usefixtures("small")
def test_residuals_that_are_lost_before_every_round_are_those_of_fade_0(corpus: Corpus) -> None:
    lost, _ = after_two_rounds(corpus, TODAY, 2, lost=1.0)
    faded, _ = after_two_rounds(corpus, Rule(0.0, 1.0), 2)
    kept, _ = after_two_rounds(corpus, TODAY, 2)
    assert torch.equal(lost[2], faded[2])
    assert not torch.equal(lost[2], kept[2])


@pytest.mark.usefixtures("small")
def test_authors_in_bfloat16_move_as_those_in_float32_do(corpus: Corpus) -> None:
    exact, light = (
        after_two_rounds(corpus, TODAY, 2, make=make)[0]
        for make in (LocalStepsAuthors, LightAuthors)
    )
    assert torch.equal(exact[0], light[0])
    for round in (1, 2):
        moved, theirs = exact[round] - exact[0], light[round] - light[0]
        assert not torch.equal(moved, theirs)
        assert torch.cosine_similarity(moved, theirs, dim=0) > 0.85


@pytest.mark.usefixtures("small")
def test_a_gain_stretches_the_first_commit_and_a_fade_changes_the_second(corpus: Corpus) -> None:
    today, _ = after_two_rounds(corpus, TODAY, 2)
    faded, _ = after_two_rounds(corpus, Rule(0.5, 1.0), 2)
    gained, _ = after_two_rounds(corpus, Rule(1.0, 2.5), 2)
    assert torch.equal(faded[1], today[1])
    assert not torch.equal(faded[2], today[2])
    assert not torch.equal(gained[1], today[1])
    alone, _ = after_two_rounds(corpus, TODAY, 1)
    whole, _ = after_two_rounds(corpus, SHORT, 1)
    assert torch.equal(alone[2], whole[2]), "who is alone keeps its own movement whole"


@pytest.mark.usefixtures("small")
def test_the_mean_of_commits_leaves_its_share_with_each_commit(corpus: Corpus) -> None:
    (genesis, first, second), mean = after_two_rounds(corpus, SHORT, 2)
    expected = MEAN_KEEPS * (MEAN_KEEPS * genesis + (1 - MEAN_KEEPS) * first)
    torch.testing.assert_close(_flat(mean.tensors), expected + (1 - MEAN_KEEPS) * second)


# ---- what is kept


def test_the_test_split_is_looked_at_when_a_block_is_whole(tmp_path: Path) -> None:
    data = tmp_path / "kept.jsonl"
    block = next(each for each in BLOCKS if each.name == "gain")
    bench = train(tmp_path, *block.jobs[:-1])
    keep(bench, "today", data)
    assert {each.look for each in read_cells(data).values() if each.key.corpus == HERE} == {None}
    keep(train(tmp_path, *block.jobs), "tomorrow", data)
    found = {key.job: each for key, each in read_cells(data).items() if key.corpus == HERE}
    assert set(found) == set(block.jobs)
    assert {each.look for each in found.values()} == {Look(1.8, 1.7, "tomorrow")}
    assert {each.mean for each in found.values()} == {1.9}
    keep(bench, "later", data)
    assert {each.look for each in read_cells(data).values() if each.key.corpus == HERE} == {
        Look(1.8, 1.7, "tomorrow")
    }, "a cell is looked at once"


def test_kept_cells_are_not_trained_again_but_on_another_text(tmp_path: Path) -> None:
    bench, first = FakeBench(tmp_path), jobs()[0]
    seen = Kept(ended(first), 1.9, Look(1.8, 1.7, "today"))
    assert first not in left(bench, [seen])
    assert left(bench, [Kept(ended(first), 1.9)])[-1] == first, "nothing is left to judge"
    assert left(bench, [Kept(ended(first, corpus="c1"), 1.9)])[0] == first
    assert first not in left(train(tmp_path, first), [])


@pytest.mark.usefixtures("small")
def test_what_is_measured_is_what_training_left(
    corpus: Corpus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.benchmarks.short_memory import train as training

    monkeypatch.setattr(training, "_text", lambda *_: corpus)
    monkeypatch.setattr(training, "open_test", lambda *_: corpus)
    usual = job("library", SHORT, authors=2)
    short = replace(usual, cell=replace(usual.cell, steps=10, warmup_steps=0))
    bench = Bench(tmp_path)
    done = bench.train(short)
    look = bench.look(short, "today")
    assert look.mean is not None
    assert abs(done.choosing - look.last) < 0.2, "one text, two cuts of it"
    assert bench.validation_of_mean(short) > done.choosing + 0.1, "it is near genesis"
    assert look.mean > look.last + 0.1


# ---- the page


def test_the_page_pairs_cells_of_one_text_by_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [
        Kept(ended(job("manual", rule, seed), bits, corpus), bits - 0.01, look)
        for rule, seed, bits, corpus, look in (
            (TODAY, 0, 2.0, "c0", Look(1.9, 1.88, "today")),
            (TODAY, 1, 2.1, "c0", None),
            (SHORT, 0, 1.9, "c0", Look(1.8, 1.7, "today")),
            (SHORT, 1, 1.8, "c0", None),
            (SHORT, 0, 1.0, "c1", None),
        )
    ]
    monkeypatch.setattr(page, "settings", lambda: page.by_setting(cells))
    lines = [line for line in page.validation_split().splitlines() if "| 0.5 | 2.5 |" in line]
    assert "| manual c0 | 8 | 0.5 | 2.5 | 0.024 | 0 | 0: 1.900, 1: 1.800 | 1.850" in lines[0]
    assert "| -0.200 (-1.471 to +1.071) | nothing |" in lines[0]
    assert lines[1].endswith("| 0: 1.000 | 1.000 |  |  |"), "nothing of that text beside it"
    of_short, today = page.test_split().splitlines()[2:]
    assert of_short.startswith("| manual c0 | 8 | 0.5 | 2.5 | 0.024 | 0 | 0: 1.800 | 1.800 |")
    assert of_short.endswith("| -0.100 (one seed) | nothing |")
    assert today == "| manual c0 | 8 | 1 | 1 | 0.024 | 0 | 0: 1.900 | 1.900 |  |  |"
    assert (
        page.means().splitlines()[2].endswith("| -0.010 (-0.010 to -0.010) | -0.100 (one seed) |")
    )


def test_a_rule_whose_residuals_are_lost_stands_beside_todays_of_which_none_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cells = [
        Kept(ended(job("manual", TODAY, lost=lost), bits))
        for lost, bits in ((0, 2.0), (1 / 16, 2.5))
    ]
    monkeypatch.setattr(page, "settings", lambda: page.by_setting(cells))
    assert page.validation_split().splitlines()[2:] == [
        "| manual | 8 | 1 | 1 | 0.024 | 0 | 0: 2.000 | 2.000 |  |  |",
        "| manual | 8 | 1 | 1 | 0.024 | 0.0625 | 0: 2.500 | 2.500 | +0.500 (one seed) | nothing |",
    ]


def test_the_page_says_which_cells_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [Kept(ended(each)) for each in BLOCKS[0].jobs[:4]]
    cells += [Kept(ended(each, corpus="c1")) for each in BLOCKS[0].jobs[3:]]
    monkeypatch.setattr(page, "read_cells", lambda: {each.key: each for each in cells})
    library, _, manual, *_ = page.expected().splitlines()[2:]
    assert library.endswith("| 4 of 6 |")
    assert manual.endswith("| 0 of 6 |")
