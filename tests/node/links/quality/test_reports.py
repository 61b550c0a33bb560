"""A node tells what its links are like when it is news, and seldom."""

from dataclasses import dataclass

from node.links.quality.reports import PAUSE_MS, REPEAT_MS, LinkReports
from protocol import wire_pb2 as wire
from protocol.ids import PeerId
from protocol.mixing.link_report import BIT_S_MAX, LINKS_MAX, ROUND_TRIP_MS_MAX

NOW_MS = 5_000_000


@dataclass
class Link:
    peer: PeerId
    round_trip_ms: int | None
    bit_s: int = 0


def peer(number: int) -> PeerId:
    return PeerId(f"{number:032x}")


def told(message: wire.NodeMessage | None) -> list[tuple[int, int, int]] | None:
    if message is None:
        return None
    return [
        (int(link.peer_id, 16), link.round_trip_ms, link.bit_per_second)
        for link in message.links.links
    ]


def test_nothing_is_said_before_anything_is_measured() -> None:
    reports = LinkReports()
    assert reports.due([], 0, NOW_MS) is None
    assert reports.due([Link(peer(1), None)], 0, NOW_MS) is None
    assert told(reports.due([Link(peer(1), None), Link(peer(2), 7)], 0, NOW_MS)) == [(2, 7, 0)]


def test_links_are_told_sorted_and_within_the_bounds() -> None:
    links = [Link(peer(2), 9 * ROUND_TRIP_MS_MAX, 9 * BIT_S_MAX), Link(peer(1), 3)]
    assert told(LinkReports().due(links, 0, NOW_MS)) == [
        (1, 3, 0),
        (2, ROUND_TRIP_MS_MAX, BIT_S_MAX),
    ]
    many = [Link(peer(number), 1000 - number) for number in range(1, 100)]
    found = told(LinkReports().due(many, 0, NOW_MS))
    assert found is not None
    assert [number for number, _, _ in found] == list(range(100 - LINKS_MAX, 100)), "the nearest"


def test_a_peer_that_is_greedy_is_told_with_its_link_as_soon_as_a_report_may_be() -> None:
    reports, links = LinkReports(), [Link(peer(1), 3), Link(peer(2), 3)]
    assert reports.due(links, 0, NOW_MS)
    assert reports.due(links, 0, NOW_MS + PAUSE_MS) is None
    message = reports.due(links, 0, NOW_MS + PAUSE_MS, {peer(2), peer(3)})
    assert message is not None
    assert [link.greedy for link in message.links.links] == [False, True]


def test_a_peer_to_which_links_break_is_told_also_where_the_newest_one_is_away() -> None:
    reports, links = LinkReports(), [Link(peer(1), 3), Link(peer(2), 30)]
    assert reports.due(links, 0, NOW_MS)
    message = reports.due(links[:1], 0, NOW_MS + PAUSE_MS, breaking={peer(2), peer(3)})
    assert message is not None
    found = [(link.round_trip_ms, link.breaks) for link in message.links.links]
    assert found == [(3, False), (30, True)]


def test_a_new_link_or_a_changed_value_is_told_after_a_pause() -> None:
    reports = LinkReports()
    assert reports.due([Link(peer(1), 10)], 0, NOW_MS)
    both = [Link(peer(1), 10), Link(peer(2), 10)]
    assert reports.due(both, 0, NOW_MS + PAUSE_MS - 1) is None
    assert told(reports.due(both, 0, NOW_MS + PAUSE_MS)) == [(1, 10, 0), (2, 10, 0)]
    both[1].round_trip_ms = 15
    assert reports.due(both, 0, NOW_MS + 2 * PAUSE_MS) is None, "a few milliseconds are no news"
    both[1].round_trip_ms = 16
    assert reports.due(both, 0, NOW_MS + 2 * PAUSE_MS)
    both[0].bit_s = 5
    assert told(reports.due(both, 0, NOW_MS + 3 * PAUSE_MS)) == [(1, 10, 5), (2, 16, 0)]


def test_the_same_words_are_repeated_seldom_and_at_once_in_a_new_session() -> None:
    reports = LinkReports()
    first = reports.due([Link(peer(1), 10)], 0, NOW_MS)
    link = Link(peer(1), 11)
    assert reports.due([link], 0, NOW_MS + REPEAT_MS - 1) is None
    assert reports.due([link], 0, NOW_MS + REPEAT_MS) == first, "repeated ones cost nothing"
    assert reports.due([link], 0, NOW_MS + REPEAT_MS + 1) is None
    assert told(reports.due([link], 1, NOW_MS + REPEAT_MS + 2)) == [(1, 11, 0)]
