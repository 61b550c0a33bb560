"""Places: one for each author of a round, taken by nobody else."""

from node.gossip.machine.authors import Authors
from protocol.codec.announcement import Announcement
from protocol.ids import sha256


def said(author: int, blob: bytes = b"x", round: int = 7, size: int = 1) -> Announcement:
    """An announcement that the shell has verified."""
    return Announcement(bytes([author]) * 32, round, sha256(blob), size, 1, b"signed")


def authors(*numbers: int) -> Authors:
    made = Authors()
    made.set_members(frozenset(said(number).author for number in numbers))
    made.follow([7])
    return made


def test_each_member_has_one_place() -> None:
    places = authors(1, 2)
    for number in (1, 2):
        mine = said(number, bytes([number]))
        assert places.refusal(mine) == ""
        places.enter(mine)
        assert places.knows(mine)
        assert places.find(7, mine.digest) == mine
    assert places.refusal(said(1, bytes([1]))) == ""
    assert "has another payload" in places.refusal(said(1, b"second"))


def test_two_payloads_of_one_author_or_two_sizes_are_a_conflict() -> None:
    places = authors(1)
    places.enter(said(1))
    assert places.conflict(said(1)) is None
    assert places.conflict(said(1, b"second")) == said(1)
    assert places.conflict(said(1, size=2)) == said(1)
    assert places.conflict(said(1, b"second", round=8)) is None
    places.enter(said(1, b"second"))
    assert places.find(7, said(1).digest) == said(1), "the first keeps the place"


def test_a_stranger_has_no_place_and_a_member_that_left_keeps_its_own() -> None:
    places = authors(1, 2)
    assert "expected a payload of a member" in places.refusal(said(3))
    places.set_members(frozenset([said(1).author]))
    assert places.refusal(said(2)) == ""
    places.follow([8])
    assert "expected a payload of a member" in places.refusal(said(2, round=8))


def test_places_go_with_their_round() -> None:
    places = authors(1)
    places.enter(said(1))
    places.follow([7, 8])
    assert places.knows(said(1))
    places.follow([8])
    assert not places.knows(said(1))
    assert places.find(7, said(1).digest) is None
