"""The words of ranks on a real store, of threads in place of processes."""

import socket

import pytest

from node.ranks.launch import children
from node.ranks.line import RankLine, RankPatience, patience_of
from node.ranks.place import RankPlace
from protocol.errors import AddressInUseError
from tests.support.tiny import tiny_spec


def test_words_arrive_and_are_forgotten_and_silence_is_measured() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    own = RankLine(RankPlace(0, 2, 0, 2, "127.0.0.1", port), listener.detach())
    other = RankLine(RankPlace(1, 2, 1, 2, "127.0.0.1", port))
    own.say("order/1", b"words")
    assert other.hear("order/1") == [b"words"]
    assert other.has("order/1")
    own.forget("order/1")
    assert not other.has("order/1")
    while other.silent_s(0) == 0:  # its first sign is seen, and then no new one for a moment
        pass
    while other.silent_s(0) > 0:
        pass
    for line in (own, other):
        line.close()


def test_ranks_of_another_start_are_not_heard() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    own = RankLine(RankPlace(0, 2, 0, 2, "127.0.0.1", port), listener.detach())
    late = RankLine(RankPlace(1, 2, 1, 2, "127.0.0.1", port, attempt="1"))
    own.say("welcome", b"")
    assert not late.has("welcome")
    for line in (own, late):
        line.close()


def test_a_port_of_another_process_is_told() -> None:
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            AddressInUseError, match=rf"cannot meet at 127.0.0.1:{port}, as another"
        ):
            RankLine(RankPlace(0, 2, 0, 2, "127.0.0.1", port))


def test_ranks_that_a_node_starts_meet_on_the_loopback_interface_alone() -> None:
    with children(1, {}) as made:
        assert made.place.address == "127.0.0.1"
        listener = socket.socket(fileno=made.listener_fd)
        assert listener.getsockname() == ("127.0.0.1", made.place.port)
        assert made.ended() == {}
        listener.close()


@pytest.mark.parametrize(
    ("lease_ms", "compute_ms", "patience"),
    [
        (20_000, 30_000, RankPatience(10.0, 120.0)),
        (5_000, 300_000, RankPatience(6.0, 300.0)),
        (600_000, 30_000, RankPatience(30.0, 120.0)),
    ],
)
def test_ranks_are_waited_for_by_the_clock_of_the_run(
    lease_ms: int, compute_ms: int, patience: RankPatience
) -> None:
    assert patience_of(tiny_spec(lease_ms=lease_ms, compute_ms=compute_ms)) == patience
