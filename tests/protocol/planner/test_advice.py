"""A plan says whether decentralisation pays, and what to change, with numbers that it predicted."""

import json
import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from protocol.codec.payload import PayloadShape
from protocol.planner.advice import bytes_text, rate_text, seconds_text, sentences
from protocol.planner.changes import largest_hidden_k, rates_for_equality, without_the_slowest
from protocol.planner.chart import chart
from protocol.planner.compute import Compute
from protocol.planner.links import MEASURED, Line, Network, exchange_s
from protocol.planner.methods import Setting, Traffic, predicted
from protocol.planner.payload_bytes import votes_bytes
from protocol.planner.plan import GROWTH_NODES, plan
from protocol.runfile import AlgorithmSpec

SHAPE = PayloadShape(5000, 32, 1)
SPEC = AlgorithmSpec(name="demo", top_k=32)
TRAFFIC = Traffic(4e7, votes_bytes(SHAPE), 4e7)


def homes(*up_mbit_s: float, compute: Compute | None = None) -> Setting:
    lines = [
        Line(f"node-{node}", rate * 1e6, 10 * rate * 1e6, 0.025)
        for node, rate in enumerate(up_mbit_s)
    ]
    return Setting(compute or Compute(0.7, 1.3), Network(lines), TRAFFIC, MEASURED)


def words(setting: Setting, spec: AlgorithmSpec = SPEC) -> str:
    return "\n".join(sentences(plan(setting), spec, SHAPE))


def test_on_home_lines_decentralisation_pays_and_by_how_much() -> None:
    found = plan(homes(*[20.0] * 8))
    ratio = found.baseline.seconds / found.best.seconds
    text = words(homes(*[20.0] * 8))
    assert found.best.method == "demo-overlap"
    assert ratio > 10
    assert f"{ratio:.3g} times less than all-reduce" in text
    assert "Decentralisation pays" in text


def test_on_fast_lines_it_does_not() -> None:
    assert "does not pay" in words(homes(*[1e6] * 4, compute=Compute(10.0, 20.0)))


def test_one_node_has_nothing_to_exchange() -> None:
    assert words(homes(20.0)).startswith("One node exchanges nothing")


def test_with_lines_that_much_faster_all_reduce_is_as_quick() -> None:
    setting = homes(*[20.0] * 8)
    best_s = plan(setting).best.seconds
    factor = rates_for_equality(setting, best_s)
    assert factor is not None

    def all_reduce_s(times: float) -> float:
        return predicted(
            replace(setting, network=setting.network.faster(times)), "all-reduce"
        ).seconds

    assert all_reduce_s(factor) <= 1.1 * best_s < all_reduce_s(0.9 * factor)


def test_the_largest_hidden_k_hides_and_the_next_does_not() -> None:
    setting = homes(*[20.0] * 8)
    top_k = largest_hidden_k(setting, SHAPE)
    assert top_k is not None

    def exchange(k: int) -> float:
        size = votes_bytes(PayloadShape(SHAPE.chunks, k, 1))
        return exchange_s(setting.network, size, setting.calibration)

    assert exchange(top_k) <= setting.compute.demo_s < exchange(top_k + 1)
    assert f"k up to {top_k} costs no time" in words(setting)
    thin = homes(*[0.01] * 8)
    assert largest_hidden_k(thin, SHAPE) is None


def test_nodes_that_hold_up_the_others_are_named() -> None:
    setting = homes(*[20.0] * 6, 0.1, 0.1)
    before = predicted(setting, "demo-overlap")
    found = without_the_slowest(setting, before)
    assert found is not None
    assert found.nodes == (6, 7)
    assert found.work == pytest.approx(before.seconds / found.seconds * 6 / 8)
    assert re.search(r"Slowest: without node-6, node-7 a round of demo-overlap", words(setting))
    assert "Slowest" not in words(homes(*[20.0] * 8))


def test_a_slow_machine_is_named_too() -> None:
    setting = homes(*[1e4] * 4, compute=Compute(10.0, 20.0, slower=(1.0, 5.0, 1.0, 1.0)))
    assert "Slowest: without node-1" in words(setting)


def test_unequal_links_get_neighbours() -> None:
    far = np.full((6, 6), 8.0)
    for first, second in ((0, 3), (3, 1), (1, 4), (4, 2), (2, 5), (5, 0)):
        far[first, second] = far[second, first] = 0.01
    lines = [Line(f"node-{node}", 1e9, 1e9) for node in range(6)]
    setting = Setting(Compute(0.7, 1.3), Network(lines, between_s=far), TRAFFIC, MEASURED)
    found = plan(setting, grows=False)
    best = found.proposals[0]
    assert best.topology == "ring"
    assert best.exact
    assert best.seconds < best.as_listed_s / 5
    assert "Neighbours: ring in the order " in "\n".join(sentences(found, SPEC, SHAPE))
    assert plan(homes(*[20.0] * 6)).proposals == ()


def test_groups_of_near_nodes_make_hierarchical_gossip_quicker() -> None:
    group = np.arange(8) % 2
    far = np.where(group[:, None] == group, 0.001, 2.0)
    lines = [Line(f"node-{node}", 1e9, 1e9) for node in range(8)]
    setting = Setting(Compute(0.1, 0.2), Network(lines, between_s=far), TRAFFIC, MEASURED)
    found = plan(setting, grows=False)
    times = {one.topology: one.seconds for one in found.predictions if one.topology}
    assert len(found.groups) == 2
    assert times["hierarchical"] < times["random-matching"]
    assert "Groups with fast links" in "\n".join(sentences(found, SPEC, SHAPE))


def test_rounds_to_a_loss_are_told_where_a_study_has_them() -> None:
    document = plan(homes(*[20.0] * 4)).document(SPEC)
    rounds = {one["method"]: one["rounds_to_loss"] for one in document["methods"]}
    assert rounds == {
        "all-reduce": 140,
        "demo": 390,
        "demo-overlap": None,
        "gossip-adam": None,
        "diloco": None,
    }
    assert "Time to a fixed loss" in words(homes(*[20.0] * 4))
    assert "Time to a fixed loss" not in words(
        homes(*[20.0] * 4), SPEC.model_copy(update={"top_k": 17})
    )


def test_growth_of_demo_is_linear_and_that_of_gossip_is_none() -> None:
    found = plan(homes(*[20.0] * 8))
    assert [point.nodes for point in found.growth["demo"]] == list(GROWTH_NODES)
    sent = [point.up_bytes for point in found.growth["demo"]]
    assert sent == [(nodes - 1) * TRAFFIC.payload for nodes in GROWTH_NODES]
    gossip = {round(point.up_bytes) for point in found.growth["gossip-adam"]}
    assert len(gossip) <= 2  # two nodes have no second edge
    json.dumps(found.document(SPEC))


def test_the_figure_is_svg_with_a_bar_for_each_method() -> None:
    found = plan(homes(*[20.0] * 4))
    text = chart("a < b & c", found.predictions)
    root = ElementTree.fromstring(text)
    texts = [one.text or "" for one in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b & c" in texts
    assert all(one.title in texts for one in found.predictions)
    assert text == chart("a < b & c", found.predictions)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (seconds_text(0), "0 s"),
        (seconds_text(0.01234), "12.3 ms"),
        (seconds_text(999.6), "16.7 min"),
        (seconds_text(7.3e6), "84.5 d"),
        (bytes_text(999.9), "1 kB"),
        (bytes_text(1.53e8), "153 MB"),
        (rate_text(4e5), "400 kbit/s"),
        (rate_text(2e7), "20 Mbit/s"),
    ],
)
def test_numbers_are_short(found: str, text: str) -> None:
    assert found == text
