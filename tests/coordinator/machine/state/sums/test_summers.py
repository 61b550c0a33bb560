"""Who adds what: in proportion to uplinks, never twice, and no two authors where others offer."""

from collections import Counter
from collections.abc import Mapping
from itertools import chain, islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coordinator.machine.state.sums.summers import DRAWS_MAX, UPLINK_MAX, Summers, draw
from protocol.ids import Digest, PeerId, sha256
from protocol.sums.ranges import range_count

CHUNKS = 10_000


def peer(number: int) -> PeerId:
    return PeerId(f"{number:032x}")


def seed(number: int) -> Digest:
    return sha256(number.to_bytes(8, "big"))


def crowd(uplinks: list[int], first: int = 0) -> dict[PeerId, int]:
    return {peer(first + number): uplink for number, uplink in enumerate(uplinks)}


def drawn(
    number: int, relays: list[int], members: list[int], idle: int = 0, chunks: int = CHUNKS
) -> Summers | None:
    """`members`, of which the first `idle` are no authors, and relays, by their uplinks."""
    at_home = crowd(members, 1000)
    return draw(seed(number), chunks, crowd(relays), at_home, list(at_home)[idle:])


def loads(summers: Summers) -> Counter[PeerId]:
    return Counter(chain.from_iterable(summers.pairs))


uplinks = st.lists(st.integers(1, 10**6), max_size=40)


@settings(max_examples=200)
@given(
    number=st.integers(0, 10**6),
    relays=uplinks,
    members=uplinks,
    idle=st.integers(0, 5),
    chunks=st.integers(1, 500),
)
def test_every_range_has_two_summers_of_which_one_is_no_author_where_there_are_such(
    number: int, relays: list[int], members: list[int], idle: int, chunks: int
) -> None:
    found = drawn(number, relays, members, idle, chunks)
    if len(relays) + len(members) < 2:
        assert found is None
        return
    assert found is not None
    authors = {each for each, _ in found.authors}
    assert len(found.pairs) == len(found.ranges) == range_count(chunks, len(members[idle:]))
    assert all(first != second for first, second in found.pairs)
    if found.others:
        assert not any(first in authors for first, _ in found.pairs)
    assert found == drawn(number, relays, members, idle, chunks)


@settings(max_examples=200)
@given(
    number=st.integers(0, 10**6),
    relays=st.lists(st.integers(50, 100), min_size=3, max_size=20),
    members=st.lists(st.integers(1, 100), min_size=0, max_size=20),
)
def test_loads_are_shares_of_all_uplinks_to_the_next_whole_number(
    number: int, relays: list[int], members: list[int]
) -> None:
    found = drawn(number, relays, members)
    assert found is not None
    tasks, had = 2 * len(found.ranges), loads(found)
    others, own = sum(relays), sum(members)
    for pool, together, half in ((found.others, others, others < own), (found.authors, own, 1)):
        of_pool = tasks / 2 if half and others < own else tasks * together / (others + own)
        for each, uplink in pool:
            assert abs(had[each] - of_pool * uplink / together) < 1
    assert sum(had.values()) == tasks


def test_the_fastest_candidate_adds_every_range_once_at_most() -> None:
    found = drawn(1, [10**6, 1, 2], [3, 4])
    assert found is not None
    assert loads(found)[peer(0)] == len(found.ranges)
    lone = drawn(1, [1], [10**6, 10**6, 10**6])
    assert lone is not None
    assert {first for first, _ in lone.pairs} == {peer(0)}, "the only one that is no author"
    two = drawn(1, [], [5, 10**9])
    assert two is not None
    assert {frozenset(pair) for pair in two.pairs} == {frozenset({peer(1000), peer(1001)})}


def test_a_lone_relay_that_has_missed_rounds_has_less_than_half_and_is_asked_later() -> None:
    relay, at_home = crowd([100]), crowd([10] * 30, 1000)

    def tasks(missed: int) -> int:
        found = draw(seed(1), CHUNKS, relay, at_home, list(at_home), {peer(0): missed})
        assert found is not None
        assert found.others == ((peer(0), max(1, 100 >> missed)),)
        return 100 * loads(found)[peer(0)] // (2 * len(found.ranges))

    shares = [tasks(missed) for missed in (0, 1, 2, 3)]
    for share, expected in zip(shares, (50, 33, 20, 11), strict=True):
        assert abs(share - expected) <= 3, shares
    assert tasks(16) <= 3


@pytest.mark.parametrize(
    ("relays", "members"), [([], []), ([5], []), ([], [5]), ([0, -1], [5]), ([5], [0])]
)
def test_too_few_candidates_are_none(relays: list[int], members: list[int]) -> None:
    assert drawn(1, relays, members) is None


def test_a_relay_that_is_an_author_is_one_and_absurd_uplinks_are_cut() -> None:
    relays: Mapping[PeerId, int] = crowd([7, UPLINK_MAX * 2**40])
    found = draw(seed(0), 100, relays, crowd([3, 3, 3]), [peer(0), peer(2)])
    assert found is not None
    assert found.others == ((peer(1), UPLINK_MAX),)
    assert found.authors == ((peer(0), 7), (peer(2), 3))


def test_another_round_has_other_companions() -> None:
    pairs = [set(found.pairs) for each in range(20) if (found := drawn(each, [], [9] * 40))]
    assert len({frozenset(each) for each in pairs}) == 20
    met = Counter(frozenset(pair) for each in pairs for pair in each)
    assert max(met.values()) <= 6, "nobody has one companion in most rounds"


def test_a_hostile_third_rarely_adds_a_range_alone_and_never_where_others_offer() -> None:
    hostile = {peer(1000 + each) for each in range(8)}
    alone, ranges = 0, 0
    for number in range(300):
        free, beside = drawn(number, [], [9] * 24), drawn(number, [9] * 4, [9] * 24)
        assert free is not None
        assert beside is not None
        alone += sum(set(pair) <= hostile for pair in free.pairs)
        ranges += len(free.pairs)
        assert not any(set(pair) <= hostile for pair in beside.pairs)
    assert 0.07 < alone / ranges < 0.13, "a ninth"


@settings(max_examples=100)
@given(
    number=st.integers(0, 10**6),
    relays=st.lists(st.integers(1, 100), max_size=6),
    members=st.lists(st.integers(1, 100), min_size=2, max_size=12),
    data=st.data(),
)
def test_those_that_are_gone_are_followed_by_the_next_of_the_same_draw(
    number: int, relays: list[int], members: list[int], data: st.DataObject
) -> None:
    found = drawn(number, relays, members)
    assert found is not None
    place = data.draw(st.integers(0, len(found.ranges) - 1))
    gone: list[PeerId] = []
    while (third := found.third(place, gone)) is not None:
        assert third not in gone
        assert third not in found.pairs[place]
        also = data.draw(st.sampled_from(found.others + found.authors))[0]
        expected = third if also != third else found.third(place, [*gone, third])
        assert found.third(place, [*gone, also]) == expected
        gone.append(third)
    assert len(gone) == len(relays) + len(members) - 2
    of_relays = [each for each in gone if each in dict(found.others)]
    assert gone[: len(of_relays)] == of_relays, "those that are no authors come first"


def test_thirds_are_drawn_by_uplinks_and_no_longer_than_their_bound() -> None:
    found = drawn(1, [], [1] * 30 + [10] * 30)
    assert found is not None
    thirds = Counter(
        int(third, 16) >= 1030
        for each in range(20)
        if (again := drawn(each, [], [1] * 30 + [10] * 30))
        for place in range(len(again.ranges))
        if (third := again.third(place, ()))
    )
    assert 0.85 < thirds[True] / thirds.total() < 0.97
    everybody = [each for each, _ in found.authors]
    assert found.third(0, everybody) is None
    first = list(islice(found._drawn(b"third" + bytes(4)), DRAWS_MAX))
    assert found.third(0, first) is None, "the bound"
    assert len(set(first)) == DRAWS_MAX
