"""Predictions are the closed forms without jitter, max-plus with it, and monotone in the lines."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import settings as few
from hypothesis import strategies as st

from protocol.errors import SettingsError
from protocol.mixing.topologies import TOPOLOGY_NAMES, Topology
from protocol.planner.compute import Compute, estimated
from protocol.planner.links import MEASURED, HomeLine, Network
from protocol.planner.methods import BUCKET_BYTES, METHOD_NAMES, Setting, predicted
from tests.protocol.planner.settings import (
    FAST_BIT_S,
    PASS,
    TRAFFIC,
    instant,
    lines,
    seconds,
    setting,
)

FINITE_RUN = 1.005
"""Rounds in the long run never get longer; measured over 200 rounds they may by a round's end."""


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("jitter", [0.0, 0.5])
def test_one_node_takes_its_compute_and_sends_nothing(method: str, jitter: float) -> None:
    found = predicted(setting(1, replace(PASS, jitter=jitter)), method)  # type: ignore[arg-type]
    compute_s = PASS.demo_s if method.startswith("demo") else PASS.adam_s
    assert found.seconds == pytest.approx(compute_s, rel=0.01)
    assert found.compute_s == pytest.approx(compute_s)
    assert (found.exposed_s, found.up_bytes) == (0, 0)


def test_without_jitter_the_closed_forms_hold() -> None:
    found = seconds(setting(8))
    delay_s, rate = 0.02, 2e7 / 8
    ring_s = 14 * delay_s + 14 / 8 * TRAFFIC.gradient / rate
    first_s = PASS.backward_s * BUCKET_BYTES / TRAFFIC.gradient
    gather_s = delay_s + 7 * TRAFFIC.payload / rate
    pair_s = delay_s + TRAFFIC.parameters / rate
    assert found["all-reduce"] == pytest.approx(
        PASS.forward_s + max(PASS.backward_s, first_s + ring_s) + PASS.optimizer_s
    )
    assert found["demo"] == pytest.approx(PASS.demo_s + gather_s)
    assert found["demo-overlap"] == pytest.approx(max(PASS.demo_s, gather_s))
    assert found["one-peer-exponential"] == pytest.approx(max(PASS.adam_s, pair_s))
    assert found["ring"] == pytest.approx(max(PASS.adam_s, pair_s))
    assert found["complete"] == pytest.approx(delay_s + 7 * TRAFFIC.parameters / rate)
    assert found["diloco"] == pytest.approx(PASS.adam_s + ring_s / TRAFFIC.local_steps)


def test_on_fast_lines_overlap_and_gossip_hide_the_exchange() -> None:
    found = seconds(Setting(PASS, Network(lines(8, 1e15, 1e15)), TRAFFIC, MEASURED))
    assert found["demo-overlap"] == pytest.approx(PASS.demo_s)
    assert found["one-peer-exponential"] == pytest.approx(PASS.adam_s)
    assert found["demo"] > PASS.demo_s


@pytest.mark.parametrize(
    ("nodes", "barrier", "delayed", "gossip"), [(64, 1.92, 1.22, 1.11), (8, 1.48, 1.11, 1.07)]
)
def test_waiting_is_that_of_the_max_plus_model(
    nodes: int, barrier: float, delayed: float, gossip: float
) -> None:
    one = instant(nodes, 0.3)
    assert predicted(one, "all-reduce").seconds == pytest.approx(barrier, rel=0.02)
    assert predicted(one, "demo").seconds == pytest.approx(barrier, rel=0.02)
    assert predicted(one, "demo-overlap").seconds == pytest.approx(delayed, rel=0.02)
    topology = Topology("one-peer-exponential")
    assert predicted(one, "gossip-adam", topology).seconds == pytest.approx(gossip, rel=0.02)


def test_a_node_twice_as_slow_costs_two_in_every_method() -> None:
    one = instant(8, 0.0)
    slow = replace(one, compute=replace(one.compute, slower=(1.0,) * 7 + (2.0,)))
    for method, found in seconds(slow).items():
        assert found == pytest.approx(2.0, rel=0.05), method


def test_demo_sends_a_payload_to_every_other_node() -> None:
    for nodes in (2, 5, 16):
        for method in ("demo", "demo-overlap"):
            found = predicted(setting(nodes), method)  # type: ignore[arg-type]
            assert found.up_bytes == (nodes - 1) * TRAFFIC.payload


def test_gossip_sends_as_much_whatever_the_number_of_nodes() -> None:
    for nodes in (4, 16, 64):
        found = predicted(setting(nodes), "gossip-adam", Topology("one-peer-exponential"))
        assert found.up_bytes == pytest.approx(TRAFFIC.parameters)
    found = predicted(setting(8), "gossip-adam", Topology("complete"))
    assert found.up_bytes == pytest.approx(7 * TRAFFIC.parameters)


@few(max_examples=25)
@given(
    st.lists(st.floats(1e5, 1e9), min_size=1, max_size=9),
    st.floats(1.0, 50.0),
    st.data(),
)
def test_more_bandwidth_never_slows_a_method(
    rates: list[float], factor: float, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(rates) - 1))
    compute = replace(PASS, jitter=data.draw(st.sampled_from([0.0, 0.4])))
    faster = [rate * (factor if node == place else 1) for node, rate in enumerate(rates)]
    before, after = (
        seconds(
            Setting(
                compute, Network([HomeLine("", rate, 2 * rate) for rate in some]), TRAFFIC, MEASURED
            )
        )
        for some in (rates, faster)
    )
    for method in before:
        assert after[method] <= before[method] * FINITE_RUN, method


@given(st.integers(1, 20), st.sampled_from(TOPOLOGY_NAMES))
@few(max_examples=20)
def test_the_parts_add_up(nodes: int, name: str) -> None:
    one = setting(nodes, replace(PASS, jitter=0.3))
    for method in METHOD_NAMES:
        found = predicted(one, method, Topology(name))  # type: ignore[arg-type]
        parts = (found.compute_s, found.exposed_s, found.waiting_s)
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(found.seconds)


def test_equal_seeds_give_equal_predictions() -> None:
    one = instant(8, 0.3)
    assert seconds(one) == seconds(one)
    assert seconds(one) != seconds(replace(one, seed=1))


def test_one_thin_uplink_holds_up_an_all_reduce_more_than_an_exchange() -> None:
    thin = [*lines(7, FAST_BIT_S, FAST_BIT_S), HomeLine("thin", 1e6, FAST_BIT_S, 0.02)]
    one = Setting(Compute(0.0, 0.0), Network(thin), TRAFFIC, MEASURED)
    assert predicted(one, "demo").seconds < 14  # one payload, which the others pass on
    assert predicted(one, "all-reduce").seconds > 8 * 7 / 4 * TRAFFIC.gradient / 1e6


def test_estimates_follow_the_speed_of_the_machine() -> None:
    by_flops = estimated(None, 1e12, 10**6, 1000, "votes")
    by_pass = estimated(by_flops.pass_s, None, 10**6, 1000, "votes")
    assert by_flops.pass_s == pytest.approx(6e9 / 1e12)
    assert by_flops.backward_s == pytest.approx(2 * by_flops.forward_s)
    assert by_pass.demo_s == pytest.approx(by_flops.demo_s)
    movements, votes = (
        estimated(None, 1e12, 10**6, 1000, what).demo_s for what in ("movements", "votes")
    )
    assert by_flops.demo_s == votes < movements
    assert estimated(0.0, None, 10**6, 1000, "votes").demo_s == 0


def test_wrong_figures_are_named() -> None:
    with pytest.raises(SettingsError, match="got neither"):
        estimated(None, None, 1, 1, "votes")
    with pytest.raises(SettingsError, match="forward_s: expected 0 or more"):
        Compute(-1.0, 0.0)
    with pytest.raises(SettingsError, match="slower: expected factors above 0"):
        Compute(1.0, 1.0, slower=(0.0,))
    with pytest.raises(SettingsError, match="at least one node"):
        Network([])
    with pytest.raises(SettingsError, match="rates above 0"):
        Network([HomeLine("a", 0, 1), HomeLine("b", 1, 1)])
