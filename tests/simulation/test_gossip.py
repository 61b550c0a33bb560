"""Promises of gossip over home links, kept by the real machines on a simulated network."""

import hashlib
import os
import subprocess
import sys
from itertools import permutations
from pathlib import Path

import pytest

from node.gossip.machine import events
from tests.simulation.fluid import Flow, Fluid, push_to_all_ms
from tests.simulation.gossip import Gossip, gossip
from tests.simulation.gossip_setting import (
    EQUAL,
    PROFILES,
    Home,
    Setting,
    bound_ms,
    home,
    links_among,
)

MB = 1_000_000
SLOW = home(2, 20, 25)
ROUND_TRIPS = 6
"""A few round trips: an offer, a request and the first byte take one and a half for each of few
hops."""


def round_trip_ms(homes: tuple[Home, ...]) -> float:
    return 4 * max(home.delay_ms for home in homes)


# ---- the network itself


def test_flows_share_a_thin_link_equally_and_leave_the_rest_to_the_others() -> None:
    homes = [Home(10, 10, 0), Home(10, 2, 0), Home(10, 10, 0), Home(3, 10, 0)]
    fluid = Fluid(homes)
    flows = {pair: Flow(*pair, 0, 0, 100, 100) for pair in ((0, 1), (0, 2), (3, 1), (3, 2))}
    for flow in flows.values():
        fluid.add(flow)
    fluid.next_ms()
    assert {pair: flow.rate for pair, flow in flows.items()} == {
        (0, 1): 1,
        (3, 1): 1,
        (3, 2): 2,
        (0, 2): 8,
    }


@pytest.mark.parametrize("count", [2, 3, 8])
def test_push_to_all_over_equal_links_takes_the_bound_and_one_delay(count: int) -> None:
    homes = (EQUAL,) * count
    assert push_to_all_ms(homes, MB) == pytest.approx(bound_ms(homes, MB) + 2 * EQUAL.delay_ms)


def test_push_to_all_is_as_slow_as_the_thinnest_uplink_times_the_number_of_others() -> None:
    homes = (*(EQUAL,) * 7, SLOW)
    assert push_to_all_ms(homes, MB) == pytest.approx(
        7 * MB / SLOW.up + EQUAL.delay_ms + SLOW.delay_ms
    )


def test_two_nodes_exchange_in_the_time_of_one_payload_and_three_delays() -> None:
    result = gossip(Setting((EQUAL,) * 2, MB))
    assert result.round_ms[0] == pytest.approx(MB / EQUAL.up + 3 * 2 * EQUAL.delay_ms, abs=5)
    assert result.payload_up == (MB, MB)
    assert result.duplicate_share == 0


# ---- how fast


@pytest.mark.parametrize("size", [MB, 30_000])
@pytest.mark.parametrize("neighbours", [4, 8])
@pytest.mark.parametrize("count", [4, 8, 16])
def test_over_equal_links_all_gather_takes_at_most_half_longer_than_the_bound_and_a_few_round_trips(
    count: int, neighbours: int, size: int
) -> None:
    homes = (EQUAL,) * count
    result = gossip(Setting(homes, size, neighbours=neighbours, rounds=3))
    assert max(result.round_ms) <= 1.5 * bound_ms(homes, size) + ROUND_TRIPS * round_trip_ms(homes)
    assert result.duplicate_share < 0.03
    assert sum(result.payload_up) == 3 * count * (count - 1) * size


@pytest.mark.parametrize("profile", ["dsl", "cable", "fibre", "lte", "5g-fixed", "starlink"])
def test_over_home_links_of_one_kind_it_takes_no_longer(profile: str) -> None:
    homes = (PROFILES[profile],) * 8
    result = gossip(Setting(homes, MB, neighbours=8, rounds=3, jitter_ms=100))
    assert (
        max(result.round_ms) <= 1.5 * bound_ms(homes, MB) + ROUND_TRIPS * round_trip_ms(homes) + 100
    )
    assert result.duplicate_share < 0.03


@pytest.mark.parametrize("count", [8, 16])
def test_with_one_uplink_of_a_tenth_gossip_is_three_times_faster_than_push_to_all(
    count: int,
) -> None:
    homes = (*(EQUAL,) * (count - 1), SLOW)
    result = gossip(Setting(homes, MB, neighbours=8, rounds=3))
    assert 3 * max(result.round_ms) <= push_to_all_ms(homes, MB)
    assert result.duplicate_share < 0.03
    assert result.payload_up[-1] < 3 * 3 * MB  # others passed the slow one's payload on


def test_four_nodes_with_one_uplink_of_a_tenth_come_near_the_three_times_of_the_bound() -> None:
    homes = (*(EQUAL,) * 3, SLOW)
    assert push_to_all_ms(homes, MB) / bound_ms(homes, MB) == pytest.approx(3, rel=0.01)
    assert 2.3 * max(gossip(Setting(homes, MB, rounds=3)).round_ms) <= push_to_all_ms(homes, MB)


def test_serving_one_after_the_other_is_what_makes_a_slow_uplink_bearable() -> None:
    homes = (*(EQUAL,) * 7, SLOW)
    ordered, at_once = (
        gossip(Setting(homes, MB, neighbours=8, ordered=way)).round_ms[0] for way in (True, False)
    )
    assert 2 * ordered < at_once


def test_unlike_homes_do_not_wait_for_each_others_uplinks() -> None:
    homes = tuple(PROFILES.values()) * 2
    result = gossip(Setting(homes, MB, neighbours=8))
    assert result.round_ms[0] <= 1.5 * bound_ms(homes, MB)
    assert result.round_ms[0] <= push_to_all_ms(homes, MB) / 3
    assert result.duplicate_share < 0.03


def test_in_a_large_run_a_few_neighbours_suffice_and_offers_cost_little() -> None:
    homes = (EQUAL,) * 32
    result = gossip(Setting(homes, MB // 4))
    assert result.round_ms[0] <= 1.5 * bound_ms(homes, MB // 4) + ROUND_TRIPS * round_trip_ms(homes)
    assert result.other_share < 0.005


# ---- faults


@pytest.mark.parametrize(("seed", "count"), [(1, 4), (2, 7), (3, 16), (4, 16)])
def test_lost_offers_and_broken_transfers_cost_time_and_few_bytes_twice(
    seed: int, count: int
) -> None:
    homes = tuple(list(PROFILES.values())[number % 5 + 1] for number in range(count))
    result = gossip(Setting(homes, MB, faults=seed, jitter_ms=2000))
    assert result.duplicate_share < 0.03


# ---- who can reach whom

HALF = frozenset(range(3)), frozenset(range(3, 6))


@pytest.mark.parametrize(
    ("count", "relays", "links"),
    [
        (3, 1, links_among([0, 2], [1, 2])),  # two behind NAT, and a relay
        (3, 0, links_among([0, 1], [1, 2])),  # A and C speak different transports, B both
        (
            6,
            0,
            links_among(*([0, other] for other in range(1, 6))),
        ),  # one public member, five behind NAT
        (7, 1, links_among(*([6, other] for other in range(6)))),  # six behind NAT, and a relay
        (8, 2, links_among([*HALF[0], 6], [*HALF[1], 7], [6, 7])),  # two islands, each with a relay
        (12, 0, links_among(*([n, (n + 1) % 12] for n in range(12)))),  # a ring
    ],
)
def test_payloads_cross_through_a_node_that_is_linked_to_both_sides(
    count: int, relays: int, links: frozenset[tuple[int, int]]
) -> None:
    setting = Setting((EQUAL,) * count, MB // 10, relays=relays, links=links, rounds=2)
    result = gossip(setting)
    assert result.duplicate_share < 0.03
    members = count - relays
    assert sum(result.payload_up) <= 2 * 1.03 * MB // 10 * (
        members * (members - 1) + relays * members
    )


def test_a_relay_carries_little_where_members_reach_each_other() -> None:
    behind_nat = links_among([0, 7], range(1, 8))
    result = gossip(Setting((EQUAL,) * 8, MB // 10, relays=1, links=behind_nat))
    assert result.payload_up[7] < 0.6 * sum(result.payload_up)


# ---- determinism


class Recorded(Gossip):
    """Keeps a digest of every effect and its instant."""

    def __init__(self, setting: Setting) -> None:
        super().__init__(setting)
        self.history = hashlib.sha256()

    def _act(self, number: int, effect: events.Effect) -> None:
        self.history.update(f"{self._now_ms:.6f} {number} {effect}\n".encode())
        super()._act(number, effect)


def history() -> str:
    """The digest of one simulation with faults, relays and missing links."""
    links = frozenset(permutations(range(9), 2)) - links_among([0, 1, 2])
    recorded = Recorded(
        Setting((EQUAL,) * 9, MB, relays=1, links=links, faults=5, rounds=2, jitter_ms=500)
    )
    recorded.run()
    return recorded.history.hexdigest()


def test_the_same_gossip_is_the_same_for_every_hash_seed() -> None:
    digests = set()
    for seed in ("1", "2"):
        code = "from tests.simulation.test_gossip import history; print(history())"
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        command = [sys.executable, "-c", code]
        ran = subprocess.run(
            command, env=environment, cwd=root, capture_output=True, text=True, check=True
        )
        digests.add(ran.stdout.strip())
    assert digests == {history()}
