"""Who may stay at a public port, and who makes room: by networks, in virtual time."""

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from border.crowd import (
    CALL_BYTES,
    EVERYBODY_BYTES_MAX,
    FORGIVEN_S,
    NETWORK_BYTES_MAX,
    PLACE_BYTES,
    READ_BYTES_PER_MS,
    UNPROVEN_MS,
    UNUSED_BYTES_MAX,
    Crowd,
)
from protocol.border.networks import ip_of

PLACES = 10_000
WASTED = PLACE_BYTES + UNUSED_BYTES_MAX
ADDRESS_PLACES = NETWORK_BYTES_MAX[4][32] // PLACE_BYTES

HOSTS = ["192.0.2.1", "192.0.2.2", "198.51.100.7", "::ffff:192.0.2.1", "laboratory"] + [
    f"2001:db8:{home:x}:{network:x}::1" for home in (1, 2) for network in (0, 1, 0x100)
]


class Knocker:
    """Connections that come to a crowd, and those that are still open."""

    def __init__(self, crowd: Crowd) -> None:
        self.crowd, self.count, self.now_ms = crowd, 0, 0
        self.open: dict[int, str] = {}

    def come(self, host: str, unused: int = 0) -> int:
        number = self.count
        self.count += 1
        self.open[number] = host
        self.cut(self.crowd.come(number, host, self.now_ms))
        if unused and number in self.open:
            self.cut(self.crowd.take(number, unused, self.now_ms))
        return number

    def leave(self, number: int) -> None:
        del self.open[number]
        self.crowd.leave(number, self.now_ms)

    def cut(self, numbers: list[int]) -> None:
        for number in numbers:
            del self.open[number]

    def from_host(self, host: str) -> list[int]:
        return [number for number, each in self.open.items() if each == host]


@pytest.fixture
def knocker() -> Knocker:
    return Knocker(Crowd(PLACES))


def test_an_address_that_fills_its_bound_pushes_out_its_own_oldest(knocker: Knocker) -> None:
    other = knocker.come("192.0.2.9")
    numbers = [knocker.come("192.0.2.1") for _ in range(ADDRESS_PLACES + 3)]
    assert knocker.from_host("192.0.2.1") == numbers[3:]
    assert other in knocker.open


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("192.0.2.{}", NETWORK_BYTES_MAX[4][24]),
        ("2001:db8::{}", NETWORK_BYTES_MAX[6][64]),
        ("2001:db8:0:{}::1", NETWORK_BYTES_MAX[6][56]),
        ("2001:db8:0:{}00::1", NETWORK_BYTES_MAX[6][48]),
    ],
)
def test_a_network_has_a_bound_that_grows_with_its_width(
    knocker: Knocker, host: str, bound: int
) -> None:
    for number in range(2000):
        knocker.come(host.format(number % 100))
    assert len(knocker.open) == bound // PLACE_BYTES


def test_a_newcomer_from_elsewhere_stays_whoever_came_first(knocker: Knocker) -> None:
    """From 1000 networks one connection after the other, while somebody says hello."""
    for number in range(2000):
        knocker.come(f"10.{number % 250}.{number % 4}.1")
    newcomer = knocker.come("203.0.113.5", unused=3000)
    for number in range(300):
        knocker.come(f"10.{number % 250}.{number % 4}.1")
    assert newcomer in knocker.open


def test_the_most_crowded_network_makes_room(knocker: Knocker) -> None:
    few = [knocker.come(f"203.0.{number}.1") for number in range(100)]
    for number in range(2000):
        knocker.come(f"10.0.{number % 8}.1")
    assert set(few) <= knocker.open.keys()
    assert knocker.crowd.bytes <= EVERYBODY_BYTES_MAX


def test_the_oldest_of_all_goes_where_no_network_is_more_crowded(knocker: Knocker) -> None:
    numbers = [knocker.come(f"10.{number // 250}.{number % 250}.1") for number in range(600)]
    assert list(knocker.open) == numbers[-(EVERYBODY_BYTES_MAX // PLACE_BYTES) :]


RETRY_MS, STAY_MS, NEWCOMER_MS = 500, 400, 10_000
"""Pause of a newcomer that was cut, time for which it must stay to get anywhere, and time in which
it is to be let in."""


@pytest.mark.parametrize(("networks", "each_ms"), [(600, 1), (1000, 2), (1000, 5)])
def test_a_newcomer_is_let_in_while_a_thousand_networks_come_again_and_again(
    networks: int, each_ms: int, knocker: Knocker
) -> None:
    """It stays twice, for a certificate and for its hello. The others come as fast as they can."""
    came, stays, since_ms, waits_ms = 0, 0, 0, 0
    own = None
    for now_ms in range(20_000, 20_000 + NEWCOMER_MS):
        knocker.now_ms = now_ms
        for _ in range(each_ms):
            knocker.come(f"10.{came % networks // 250}.{came % networks % 250}.1")
            came += 1
        if own is None and now_ms >= waits_ms:
            own, since_ms = knocker.come("203.0.113.5", unused=500), now_ms
        if own is not None and own not in knocker.open:
            own, stays, waits_ms = None, 0, now_ms + RETRY_MS
        if own is not None and now_ms - since_ms >= STAY_MS:
            if stays:
                return
            knocker.leave(own)
            own, stays = None, 1
    pytest.fail("expected the newcomer to be let in")


def test_an_address_from_which_keys_come_again_and_again_is_not_taken_for_a_crowd(
    knocker: Knocker,
) -> None:
    """As the nodes of a laboratory behind one address, each with a certificate and a hello."""
    came = 0
    for now_ms in range(60_000):
        knocker.now_ms = now_ms
        if now_ms >= 30_000 and now_ms % 2:
            knocker.come(f"10.{came % 1000 // 250}.{came % 250}.1")
            came += 1
        if now_ms % 500 == 0:
            asking = knocker.come("203.0.113.5", unused=500)
        elif now_ms % 500 == 20:
            knocker.leave(asking)
            hello = knocker.come("203.0.113.5", unused=3000)
        elif now_ms % 500 == 40:
            assert hello in knocker.open
            knocker.crowd.prove(hello, now_ms)


def test_bytes_that_nobody_could_use_are_bounded_and_calls_account_for_them(
    knocker: Knocker,
) -> None:
    crowd, number = knocker.crowd, knocker.come("192.0.2.1", unused=UNUSED_BYTES_MAX)
    assert crowd.room(number) == 0
    crowd.hear(number, 0)
    assert crowd.room(number) == CALL_BYTES
    crowd.answer(number, 64 * 1000, 0)
    assert crowd.room(number) == CALL_BYTES + 1000
    crowd.prove(number, 0)
    assert (crowd.room(number), crowd.bytes) == (UNUSED_BYTES_MAX, 0)


def test_who_makes_no_call_and_shows_no_key_is_cut_in_time(knocker: Knocker) -> None:
    crowd = knocker.crowd
    silent, caller, member = (knocker.come("192.0.2.1") for _ in range(3))
    crowd.prove(member, 0)
    crowd.hear(caller, UNPROVEN_MS - 1)
    assert crowd.late(UNPROVEN_MS) == [silent]
    assert crowd.late(2 * UNPROVEN_MS) == [caller]
    assert crowd.late(100 * UNPROVEN_MS) == []
    assert crowd.cuts == Counter(time=2)


def test_a_slow_reader_of_a_long_answer_stays_and_one_that_reads_nothing_does_not(
    knocker: Knocker,
) -> None:
    crowd, number = knocker.crowd, knocker.come("192.0.2.1")
    for second in range(60):
        crowd.answer(number, 1000 * READ_BYTES_PER_MS, 1000 * second)
        assert crowd.late(1000 * second) == []
    assert crowd.late(60_000 + UNPROVEN_MS) == [number]


def test_a_host_that_wastes_comes_in_again_as_it_is_forgiven(knocker: Knocker) -> None:
    crowd, bound = knocker.crowd, NETWORK_BYTES_MAX[4][32]
    for _ in range(-(-bound // WASTED)):
        crowd.leave(knocker.come("192.0.2.1", unused=UNUSED_BYTES_MAX), 0)
    refused = knocker.come("192.0.2.1")
    assert refused not in knocker.open
    assert crowd.cuts == Counter(waste=1)
    assert knocker.come("192.0.2.2") in knocker.open
    knocker.now_ms = FORGIVEN_S * 1000 // 10
    assert knocker.come("192.0.2.1") in knocker.open


def test_when_everybody_wastes_only_clean_networks_come_in(knocker: Knocker) -> None:
    for network in range(-(-EVERYBODY_BYTES_MAX // WASTED)):
        number = knocker.come(f"10.0.{network}.1", unused=UNUSED_BYTES_MAX)
        knocker.crowd.leave(number, 0)
    assert knocker.come("10.0.0.1") not in knocker.open
    assert knocker.come("203.0.113.5") in knocker.open


def test_a_call_and_a_key_waste_nothing(knocker: Knocker) -> None:
    for _ in range(1000):
        asking = knocker.come("192.0.2.1", unused=CALL_BYTES)
        knocker.crowd.hear(asking, 0)
        knocker.crowd.leave(asking, 0)
        member = knocker.come("192.0.2.1", unused=3000)
        knocker.crowd.prove(member, 0)
        knocker.crowd.leave(member, 0)
    assert knocker.crowd.cuts == Counter()


def test_proven_connections_keep_their_places() -> None:
    knocker = Knocker(Crowd(4))
    members = [knocker.come("192.0.2.1") for _ in range(2)]
    for number in members:
        knocker.crowd.prove(number, 0)
    for number in range(50):
        knocker.come(f"10.0.{number}.1")
    assert set(members) <= knocker.open.keys()
    assert len(knocker.open) == 4


def test_a_port_full_of_members_takes_nobody_else() -> None:
    knocker = Knocker(Crowd(2))
    for _ in range(2):
        knocker.crowd.prove(knocker.come("192.0.2.1"), 0)
    assert knocker.come("203.0.113.5") not in knocker.open


class Life(RuleBasedStateMachine):
    """Any order of events."""

    def __init__(self) -> None:
        super().__init__()
        self.crowd = Crowd(40)
        self.now_ms = self.numbers = 0
        self.open: dict[int, tuple[str, int]] = {}
        self.proven: set[int] = set()

    def forget(self, numbers: list[int]) -> None:
        for number in numbers:
            assert number in self.open, "expected each to be cut once, and while it was open"
            assert number not in self.proven, "expected no proven one to be cut"
            del self.open[number]

    @rule(host=st.sampled_from(HOSTS), unused=st.integers(0, UNUSED_BYTES_MAX))
    def come(self, host: str, unused: int) -> None:
        number = self.numbers
        self.numbers += 1
        self.open[number] = host, 0
        self.forget(self.crowd.come(number, host, self.now_ms))
        if number in self.open:
            self.take(number, unused)

    def take(self, number: int, unused: int) -> None:
        host, before = self.open[number]
        count = min(unused, self.crowd.room(number))
        self.open[number] = host, before + count
        self.forget(self.crowd.take(number, count, self.now_ms))

    @precondition(lambda self: self.open)
    @rule(data=st.data(), act=st.sampled_from(["take", "hear", "prove", "leave", "answer"]))
    def act(self, data: st.DataObject, act: str) -> None:
        number = data.draw(st.sampled_from(sorted(self.open)))
        if act == "take" and number not in self.proven:
            self.take(number, data.draw(st.integers(0, UNUSED_BYTES_MAX)))
        elif act == "hear":
            self.crowd.hear(number, self.now_ms)
        elif act == "answer":
            self.crowd.answer(number, data.draw(st.integers(0, 10**6)), self.now_ms)
        elif act == "prove":
            self.crowd.prove(number, self.now_ms)
            self.proven.add(number)
        elif act == "leave":
            self.crowd.leave(number, self.now_ms)
            del self.open[number]
            self.proven.discard(number)

    @rule(passed_ms=st.integers(1, UNPROVEN_MS))
    def pass_time(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        self.forget(self.crowd.late(self.now_ms))

    @invariant()
    def no_bound_is_passed(self) -> None:
        assert len(self.crowd) == len(self.open) <= 40
        assert self.crowd.unproven == len(self.open) - len(self.proven) <= 20
        assert self.crowd.bytes <= EVERYBODY_BYTES_MAX
        places: Counter[tuple[int, int]] = Counter()
        for number, (host, _) in self.open.items():
            if number not in self.proven and (ip := ip_of(host)):
                for bits in NETWORK_BYTES_MAX[ip.version]:
                    name = bits, int(ip) >> (ip.max_prefixlen - bits)
                    held = UNUSED_BYTES_MAX - self.crowd.room(number)
                    places[name] += PLACE_BYTES + held
        bounds = NETWORK_BYTES_MAX[4] | NETWORK_BYTES_MAX[6]
        assert all(weight <= bounds[bits] for (bits, _), weight in places.items())

    def teardown(self) -> None:
        for number in list(self.open):
            self.crowd.leave(number, self.now_ms)
        assert (len(self.crowd), self.crowd.bytes) == (0, 0)
        assert not self.crowd._everybody.parts, "expected no network to be kept for nothing"


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=40, stateful_step_count=50, deadline=None)
