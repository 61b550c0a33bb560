"""The study of gossip Adam: its page says what its data say, and its cells train."""

from pathlib import Path

import pytest

from protocol.mixing.topologies import TOPOLOGY_NAMES
from tests.benchmarks.gossip_adam.cells import COMPARISONS, RATE_CELLS, ROWS, SEEDS, STUDY
from tests.benchmarks.gossip_adam.report import FIGURE, PAGES, document, figure, page
from tests.benchmarks.gossip_adam.rounds import crossover, rounds
from tests.benchmarks.gossip_adam.train import NODES, Mixing, Result
from tests.benchmarks.gossip_adam.train import Cell as StudyCell
from tests.support.tiny import tiny_corpus


def test_the_page_has_the_current_tables_and_figure() -> None:
    for path in PAGES:
        assert page(path) == path.read_text()
    assert figure() == FIGURE.read_bytes()


def test_every_cell_of_the_study_was_trained() -> None:
    there = {(entry["name"], entry["cell"]["seed"]) for entry in document()["cells"]}
    assert {(cell.name, cell.seed) for cell in [*RATE_CELLS, *STUDY]} <= there
    assert all(len(set(pair) & ROWS.keys()) == 2 for pair in COMPARISONS.values())
    assert len(SEEDS) == 3


def test_the_rates_were_chosen_with_a_seed_that_is_not_the_study_s() -> None:
    assert not {cell.seed for cell in RATE_CELLS} & set(SEEDS)


def test_names_tell_cells_apart() -> None:
    assert len({cell.name for cell in ROWS.values()}) == len(ROWS)


@pytest.mark.parametrize("name", TOPOLOGY_NAMES)
def test_all_nodes_mix_over_the_edges_of_the_round(name: str) -> None:
    import torch

    from node.gossip_adam.adam import AdamSettings
    from tests.support.mixer import Mixer

    start = torch.zeros(40)
    nodes = [Mixer(start, AdamSettings(), "float32") for _ in range(NODES)]
    for number, node in enumerate(nodes):
        node.values += number
    cell = StudyCell("gossip", 1, 0.1, 0, topology=name, wire="float32")  # type: ignore[arg-type]
    mixing = Mixing(cell, nodes, result := Result(cell))
    for _ in range(12):
        mixing.begin()
        mixing.finish()
    values = torch.stack([node.values for node in nodes])
    assert values.mean().item() == pytest.approx((NODES - 1) / 2, abs=1e-5)
    assert float(values.std(0).max()) < 0.5  # 2.4 at first
    assert result.bytes_up > 0


def test_the_gradients_of_all_nodes_at_once_are_those_of_each(tmp_path: Path) -> None:
    import torch

    from node.data.corpus import Corpus
    from tests.benchmarks.gossip_adam.train import Network

    network = Network(0, Corpus.open(tiny_corpus(tmp_path)))
    samples = network.samples(0)
    found = network.gradients(network.start.repeat(NODES, 1), samples)
    for row, own in zip(found[:2], samples, strict=False):
        network.trainee.zero_gradients()
        network.trainee.gradient(own)
        gradients = [each.grad.flatten() for each in network.trainee.parameters.values()]  # type: ignore[union-attr]
        mean = torch.cat(gradients) / len(own)
        torch.testing.assert_close(row, mean, rtol=1e-3, atol=1e-6)


def test_a_round_of_gossip_is_shorter_only_with_very_many_homes() -> None:
    demo, gossip = rounds("cable", 8)
    assert demo.seconds < gossip.seconds
    assert crossover("cable") == 128
