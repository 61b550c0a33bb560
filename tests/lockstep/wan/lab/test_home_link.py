"""The arithmetic of a link: queues that fit it, packets that keep their order, losses as rare as
asked.
"""

import json
import random
import statistics

import pytest

from lockstep.wan.lab.home_link import (
    FRAME_BYTES_MAX,
    QUEUE_FRAMES_MIN,
    QUEUE_S,
    WANDER_S,
    HomeLink,
    LinkDirection,
    PacketFate,
    home_link,
)
from lockstep.wan.profiles import read_profiles

STEP_S = 0.0005


def arrivals(way: LinkDirection, count: int) -> list[float | None]:
    course = PacketFate(way, random.Random(1).random)
    return [course.arrival_s(number * STEP_S) for number in range(count)]


def test_a_queue_holds_what_the_link_carries_in_a_round_trip_and_the_extra_time() -> None:
    way = LinkDirection(rate_bit_s=20_000_000, delay_s=0.0125)
    assert way.queue_bytes == 20_000_000 / 8 * (0.025 + QUEUE_S)


def test_the_queue_of_a_slow_link_still_takes_the_first_burst_of_a_connection() -> None:
    assert (
        LinkDirection(rate_bit_s=64_000, delay_s=0.01).queue_bytes
        == QUEUE_FRAMES_MIN * FRAME_BYTES_MAX
    )


def test_a_direction_without_a_rate_has_no_queue() -> None:
    assert LinkDirection(delay_s=0.05).queue_bytes == 0


@pytest.mark.parametrize("name", read_profiles().profiles)
def test_a_burst_is_at_least_two_frames_and_never_a_hundredth_of_a_second(name: str) -> None:
    link = read_profiles().profile(name).link()
    for way in (link.up, link.down):
        assert way is not None
        assert way.burst_bytes >= 2 * FRAME_BYTES_MAX
        assert way.burst_bytes <= max(way.rate_bit_s / 800, 2 * FRAME_BYTES_MAX)


@pytest.mark.parametrize("name", read_profiles().profiles)
def test_packets_keep_their_order_on_every_profile(name: str) -> None:
    way = read_profiles().profile(name).link().down
    assert way is not None
    arrived = [instant for instant in arrivals(way, 20_000) if instant is not None]
    assert arrived == sorted(arrived)


def test_jitter_stays_in_its_bounds_and_leaves_the_mean_as_asked() -> None:
    way = LinkDirection(delay_s=0.035, jitter_s=0.0075)
    delays = [
        instant - number * STEP_S
        for number, instant in enumerate(arrivals(way, 200_000))
        if instant
    ]
    assert 0.0275 - 1e-9 <= min(delays) < 0.0290
    assert 0.0410 < max(delays) <= 0.0425 + 1e-9
    assert statistics.mean(delays) == pytest.approx(0.035, abs=0.0005)


def test_jitter_after_a_silence_starts_where_it_was() -> None:
    course = PacketFate(LinkDirection(delay_s=1.0, jitter_s=0.01), random.Random(1).random)
    before = course.arrival_s(WANDER_S) or 0
    assert abs((course.arrival_s(100.0) or 0) - 101.0) <= 0.01
    assert before <= WANDER_S + 1.01


def test_the_share_of_lost_packets_is_the_asked_one() -> None:
    lost = sum(instant is None for instant in arrivals(LinkDirection(loss=0.02), 100_000))
    assert 1800 < lost < 2200


def test_a_direction_with_a_loss_of_one_lets_no_packet_through() -> None:
    assert set(arrivals(LinkDirection(loss=1.0), 1000)) == {None}


def test_a_link_survives_being_written_as_json() -> None:
    link = HomeLink(up=LinkDirection(1000, 0.5, 0.1, 0.01))
    assert home_link(json.loads(json.dumps(link.document()))) == link


def test_a_slowed_link_keeps_delay_and_loss() -> None:
    link = HomeLink(LinkDirection(1000, 0.5, 0.1, 0.01), LinkDirection(delay_s=0.2)).slowed(0.1)
    assert link == HomeLink(LinkDirection(100, 0.5, 0.1, 0.01), LinkDirection(delay_s=0.2))
