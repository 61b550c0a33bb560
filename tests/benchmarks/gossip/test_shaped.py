"""The benchmark of gossip over shaped links: its arithmetic, and three nodes for real."""

import pytest

from lockstep.wan.profiles import Profile
from tests.benchmarks.gossip import shaped
from tests.benchmarks.gossip.shaped import SLOW, Setting, line, measure, settings, shares
from tests.lockstep.wan.lab.fixture import needs_ground

FAST = Profile(down_mbit_s=80, up_mbit_s=40, rtt_ms=10, jitter_ms=0, loss_percent=0)
THIN = FAST.model_copy(update={"up_mbit_s": 4, "rtt_ms": 30})
MB = 1_000_000


def setting(*homes: Profile, size: int = MB) -> Setting:
    return Setting("some", homes, size, rounds=2, pushes=1)


def test_the_bound_of_equal_homes_is_all_other_payloads_over_the_slower_direction() -> None:
    assert setting(FAST, FAST, FAST, FAST).bound_s == pytest.approx(3 * 8 / 40)
    assert setting(FAST, FAST, FAST, FAST).push_bound_s == pytest.approx(3 * 8 / 40)


def test_one_thin_uplink_binds_gossip_with_one_payload_and_a_push_with_all() -> None:
    homes = setting(FAST, FAST, FAST, THIN)
    assert homes.bound_s == pytest.approx(8 / 4)
    assert homes.push_bound_s == pytest.approx(3 * 8 / 4)


def test_many_homes_are_bound_by_all_uplinks_together() -> None:
    homes = setting(*(FAST,) * 15, THIN)
    assert homes.bound_s == pytest.approx(16 * 15 * 8 / (15 * 40 + 4))


def test_the_round_trip_is_that_between_the_two_farthest_homes() -> None:
    assert setting(FAST, FAST, THIN).round_trip_s == pytest.approx(0.06)


def test_shares_name_the_worst_node_and_add_up() -> None:
    counts = [(600, 0, 10), (300, 50, 10), (100, 20, 10)]
    traffic = [
        {"payload_up_bytes": up, "duplicate_bytes": twice, "control_up_bytes": control}
        for up, twice, control in counts
    ]
    assert shares(traffic, needed=1000) == {
        "duplicate_share": 0.05,
        "control_share": 0.03,
        "upload_shares": [0.6, 0.3, 0.1],
    }


def test_everything_that_was_asked_for_is_measured() -> None:
    everything = list(settings(quick=False))
    for name in ("cable", "cable, one slow", "dsl"):
        assert [f"{count} {name}" for count in (4, 8, 16)] == [
            each.name
            for each in everything
            if each.name.partition(" ")[2] == name and each.kinds == ("grpc",)
        ]
    assert any(len(each.homes) == 4 and each.kinds == ("libp2p",) for each in everything)
    for each in everything:
        rates = sorted(home.up_mbit_s for home in each.homes)
        assert rates[0] == pytest.approx((SLOW if "slow" in each.name else 1) * rates[-1])
    expected_s = sum(
        each.rounds * 2 * each.bound_s + each.pushes * 1.2 * each.push_bound_s
        for each in everything
    )
    assert expected_s < 15 * 60, "a quarter of an hour, with time to start and stop"


@needs_ground
def test_three_nodes_get_all_payloads_in_both_ways_and_not_before_the_bound() -> None:
    row = measure(setting(FAST, FAST, THIN, size=100_000))
    assert len(row["round_s"]) == 2
    assert len(row["push_s"]) == 1
    assert min(row["round_s"]) >= row["bound_s"]
    assert (
        min(row["push_s"]) >= 0.9 * row["push_bound_s"]
    )  # what a queue holds arrives after the last byte has left
    assert sum(row["upload_shares"]) == pytest.approx(1)
    assert row["shaped_by"] in ("netem", "tbf+delay")
    assert 0 <= row["duplicate_share"] < 1
    assert f"| {row['bound_s']:.2f} |" in line(row)


@needs_ground
def test_a_node_that_fails_says_why() -> None:
    with shaped.linked(setting(FAST, FAST, size=1000)) as (nodes, _):
        nodes[1].tell(dance=1)
        with pytest.raises(RuntimeError, match="node 1: ValueError: expected an order"):
            nodes[1].answer()
        with pytest.raises(RuntimeError, match="a node is gone"):
            nodes[1].answer()
