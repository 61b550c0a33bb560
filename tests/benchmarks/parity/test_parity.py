"""The parity study's harness does what nodes do, counts what they would send, and never trains a
cell twice.
"""

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from node.data.corpus import Corpus
from node.exact.engine import GradientError
from node.replica.demo import DemoReplica
from protocol.codec.commits import Commit, Entry
from protocol.codec.payload import Header, encode
from protocol.errors import SettingsError
from protocol.ids import PeerId, RunId, sha256
from protocol.runfile import AlgorithmSpec, ModelSpec, RunSpec
from protocol.schedule import scalars
from tests.benchmarks.parity import task
from tests.benchmarks.parity.cells import Cell, Method, Task
from tests.benchmarks.parity.demo import DemoAuthors, update_signs
from tests.benchmarks.parity.local_steps import LocalStepsAuthors
from tests.benchmarks.parity.task import Fixture
from tests.benchmarks.parity.train import train
from tests.support.passes import do_work
from tests.support.tiny import tiny_corpus

TASK = Task(
    layers=1, hidden=32, sequence_length=32, batch_samples=4, validation_samples=8, point_steps=2
)
CELL = Cell("demo", 0.01, 5, top_k=16, authors=2, warmup_steps=1, weight_decay=0.1)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(tiny_corpus(tmp_path_factory.mktemp("corpus")))


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SHARED = {*AlgorithmSpec.model_fields} & {field.name for field in fields(Cell)}
"""Fields that a cell has from a run file's algorithm."""


def trained(cell: Cell, corpus: Corpus) -> dict[str, Tensor]:
    """The parameters after a cell's last step."""
    fixture = Fixture(TASK, cell, corpus)
    authors = DemoAuthors(fixture)
    for _ in range(cell.steps):
        authors.step()
    return fixture.parameters


def twin_run(cell: Cell) -> RunSpec:
    """The run that trains as a cell says."""
    return RunSpec(
        name="twin",
        seed=cell.seed,
        model=ModelSpec(config=TASK.config),
        algorithm=AlgorithmSpec.model_validate(
            {"name": "demo", **{name: getattr(cell, name) for name in SHARED}}
        ),
        schedule=cell.schedule,
    )


def trained_by_replicas(cell: Cell, corpus: Corpus) -> dict[str, Tensor]:
    """The same from a node's replicas, one for each author, with commits as a coordinator makes
    them.
    """
    spec = twin_run(cell)
    run_id = RunId("1" * 32)
    ids = [PeerId(f"{author:032x}") for author in range(cell.authors)]
    replicas = [DemoReplica(spec, run_id, torch.device("cpu"), TASK.batch_samples) for _ in ids]
    for round_ in range(cell.steps):
        samples = corpus.batch(
            round_ * TASK.batch_samples, TASK.batch_samples, TASK.sequence_length, cell.seed
        )
        payloads = []
        shares = np.split(samples, cell.authors)
        for peer, replica, mine in zip(ids, replicas, shares, strict=True):
            do_work(replica.trainee, [mine])
            replica.accumulate()
            coefficients = replica.extract(round_).coefficients
            payloads.append(encode(Header(run_id, round_, peer), coefficients, replica.shape))
        entries = tuple(
            Entry(i, sha256(p), len(p), 1, 1) for i, p in zip(ids, payloads, strict=True)
        )
        rates = scalars(cell.schedule, round_)
        commit = Commit(run_id, round_, round_, entries, *rates, sha256(b""))
        for replica in replicas:
            replica.apply(commit, payloads)
    return replicas[0].committed


def test_the_harness_trains_the_bits_that_nodes_would(corpus: Corpus) -> None:
    ours, theirs = trained(CELL, corpus), trained_by_replicas(CELL, corpus)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize(
    "gone",
    [
        {"update": "orthogonal"},
        {"gradients": "even"},
        {"gradients": "unit"},
        {"recency": 1.5},
        {"overlap": 1, "guess": "own"},
        {"alpha": 0.5},
        {"vote_rounds": 2},
    ],
)
def test_what_the_engine_no_longer_trains_is_a_record(
    corpus: Corpus, gone: dict[str, object]
) -> None:
    cell = replace(CELL, **gone)  # type: ignore[arg-type]
    assert cell.is_record
    with pytest.raises(SettingsError, match=f"expected {next(iter(gone))} .*no longer trains it"):
        DemoAuthors(Fixture(TASK, cell, corpus))
    assert not CELL.is_record


def test_the_first_rounds_of_a_cell_may_have_a_k_of_their_own(corpus: Corpus) -> None:
    cell = replace(CELL, early_rounds=2, early_top_k=40)
    up = [DemoAuthors(Fixture(TASK, each, corpus)).step().up_bytes for each in (CELL, cell)]
    assert up[1] > 1.5 * up[0], "less their headers it is 2.5 times"


def test_without_the_transform_the_entries_with_the_largest_gradients_move_against_them(
    corpus: Corpus,
) -> None:
    cell = replace(CELL, transform="off", authors=1, weight_decay=0.0)
    fixture, twin = Fixture(TASK, cell, corpus), Fixture(TASK, cell, corpus)
    gradients = twin.layout.gather(twin.gradients(twin.samples(0)))
    DemoAuthors(fixture).step()
    moved = (fixture.layout.gather(fixture.parameters) - twin.layout.gather(twin.parameters)).sign()
    assert torch.equal(moved[moved != 0], -gradients.sign()[moved != 0])
    counts = moved.count_nonzero(dim=(1, 2))
    assert torch.equal(counts, gradients.count_nonzero(dim=(1, 2)).clamp(max=cell.top_k))
    for chunk, count in enumerate(counts.tolist()):
        sizes = gradients[chunk].abs()
        if 0 < count < sizes.numel():
            assert sizes[moved[chunk] != 0].min() >= sizes[moved[chunk] == 0].max()


def test_the_float_inverse_agrees_with_the_exact_one_but_near_zero() -> None:
    sums = torch.zeros(8, 64, 64).view(8, -1)
    generator = torch.Generator().manual_seed(0)
    places = torch.randint(4096, (8, 64), generator=generator)
    sums.scatter_(1, places, torch.randint(-4, 5, (8, 64), generator=generator).float())
    exact, rounded, off = (
        update_signs(sums.view(8, 64, 64), kind) for kind in ("exact", "float", "off")
    )
    assert (exact == rounded).float().mean() > 0.99
    assert torch.equal(off.view(8, -1), sums.sign().to(torch.int8))


def test_traffic_is_the_containers_up_and_the_others_down(corpus: Corpus) -> None:
    few, many = (
        DemoAuthors(Fixture(TASK, replace(CELL, authors=count), corpus)).step() for count in (1, 4)
    )
    assert few.up_bytes > 0 == few.down_bytes
    assert many.down_bytes == 3 * many.up_bytes


@pytest.mark.parametrize(
    ("method", "learning_rate", "bits"),
    [
        ("adamw", 0.01, 16),
        ("muon", 0.02, 16),
        ("signum", 0.003, 1),
        ("demo", 0.01, None),
        ("local_steps", 0.03, None),
    ],
)
def test_every_method_learns_and_counts_its_bytes(
    corpus: Corpus, method: Method, learning_rate: float, bits: int | None
) -> None:
    cell = Cell(method, learning_rate, 7, authors=2, warmup_steps=0, momentum_decay=0.9)
    result = train(TASK, cell, corpus)
    assert not result.failure
    assert [point.step for point in result.points] == [0, 2, 4, 6, 7]
    assert result.last.tokens == 7 * 4 * 32
    assert result.last.bits_per_byte < result.points[0].bits_per_byte - 0.5
    dense = 7 * result.parameters
    assert (
        0 < result.last.up_bytes < dense
        if bits is None
        else result.last.up_bytes == 7 * -(-dense * bits // 56)
    )


def test_local_steps_send_once_in_a_round_and_what_is_left_with_the_last_step(
    corpus: Corpus,
) -> None:
    cell = Cell("local_steps", 0.03, 7, top_k=64, authors=2, local_steps=3, warmup_steps=0)
    authors = LocalStepsAuthors(Fixture(TASK, cell, corpus))
    before = {name: tensor.clone() for name, tensor in authors.committed.items()}
    sent, moved = [], []
    for _ in range(cell.steps):
        sent.append(authors.step().up_bytes > 0)
        moved.append(any(not torch.equal(before[n], t) for n, t in authors.committed.items()))
        before = {name: tensor.clone() for name, tensor in authors.committed.items()}
    assert sent == moved == [False, False, True, False, False, True, True]


def test_numbers_that_are_not_finite_end_a_cell_and_are_its_result(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter([None, None, GradientError("expected numbers, got NaN")])

    def judged(_: object) -> None:
        if (error := next(calls)) is not None:
            raise error

    monkeypatch.setattr(task, "require_finite", judged)
    result = train(TASK, Cell("adamw", 0.01, 7), corpus)
    assert result.failure == "step 3: expected numbers, got NaN"
    assert result.last.step == 2


def test_cells_of_one_seed_see_the_same_weights_and_samples(corpus: Corpus) -> None:
    one, other = Fixture(TASK, CELL, corpus), Fixture(TASK, Cell("adamw", 0.1, 9), corpus)
    assert (one.samples(3) == other.samples(3)).all()
    assert all(
        torch.equal(tensor, other.parameters[name]) for name, tensor in one.parameters.items()
    )
    reseeded = Fixture(TASK, replace(CELL, seed=1), corpus)
    assert (one.samples(3) != reseeded.samples(3)).any()


def test_a_cell_that_would_repeat_its_text_or_cut_a_sample_is_refused(corpus: Corpus) -> None:
    with pytest.raises(SettingsError, match="each of the text 1 times at most"):
        Fixture(TASK, replace(CELL, steps=10**6), corpus)
    with pytest.raises(SettingsError, match="authors that divide 4 samples, got 3"):
        Fixture(TASK, replace(CELL, authors=3), corpus)


@pytest.mark.parametrize(
    "odd",
    [
        {"guess": "own"},
        {"overlap": 2},
        {"method": "sgd"},
        {"transform": "fft"},
        {"top_k": 0},
        {"authors": 0},
        {"local_steps": 0},
        {"local_steps": 2},
    ],
)
def test_a_cell_outside_its_bounds_is_refused(odd: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match="expected"):
        replace(CELL, **odd)  # type: ignore[arg-type]
