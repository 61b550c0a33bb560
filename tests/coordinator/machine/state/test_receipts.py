"""Receipts of one round: holders, copies, members that come back or go."""

from coordinator.machine.state.receipts import HOLDERS_TOLD_IN_ALL, HOLDERS_TOLD_MAX, Receipts
from protocol.ids import Digest, PeerId, sha256
from tests.coordinator.machine.driver import A, B, C

DIGEST = sha256(b"payload")
OTHER = sha256(b"another payload")


def receipts(*authors: PeerId, copies_min: int = 1, named_max: int = 4) -> Receipts:
    """The receipts of a round in which these authors have announced `DIGEST`."""
    made = Receipts(copies_min, named_max)
    for author in authors:
        made.announce(author, DIGEST, 500)
    return made


def test_an_author_holds_its_payload_and_is_no_copy_of_it() -> None:
    made = receipts(A)
    assert made.holding(DIGEST) == {A}
    assert made.copies(DIGEST, A) == 0
    assert made.short == {A}


def test_a_payload_is_copied_once_enough_others_hold_it() -> None:
    made = receipts(A, copies_min=2)
    made.hold(B, (DIGEST,), 600)
    assert (made.short, made.copied_ms) == ({A}, {})
    made.hold(C, (DIGEST,), 700)
    made.hold(C, (DIGEST,), 800)
    assert (made.short, made.copied_ms) == (set(), {A: 700})


def test_a_receipt_may_come_before_the_announcement() -> None:
    made = receipts()
    made.hold(B, (DIGEST,), 400)
    assert made.copied_ms == {}
    made.announce(A, DIGEST, 500)
    assert made.copied_ms == {A: 500}


def test_each_of_two_authors_of_one_payload_is_a_copy_for_the_other() -> None:
    assert receipts(A, B).short == set()


def test_a_payload_counts_for_the_author_in_its_header_alone() -> None:
    """A member that announces what another has made gains nothing by it."""
    made = receipts(A, B, copies_min=2)
    made.hold(C, (DIGEST,), 600, (A,))
    assert made.short == {B}
    assert (made.copies(DIGEST, A), made.copies(DIGEST, B)) == (2, 1)


def test_a_member_that_names_no_payloads_takes_room_from_no_other() -> None:
    made = receipts(named_max=4)
    made.hold(A, [sha256(bytes([number])) for number in range(50)], 600)
    assert len(made.holders) == 4
    made.hold(B, (DIGEST,), 600)
    assert made.holding(DIGEST) == {B}


def test_coming_and_going_makes_no_room_beyond_it() -> None:
    made = receipts()
    for life in range(20):
        made.hold(C, [sha256(bytes([life, number])) for number in range(10)], 600)
        made.forget(C)
    assert made.holders == {}


def test_a_copy_is_lost_with_the_member_that_held_it() -> None:
    made = receipts(A)
    made.hold(B, (DIGEST,), 600)
    made.forget(B)
    assert (made.holding(DIGEST), made.short) == ({A}, {A})


def test_a_member_that_is_ready_again_keeps_only_the_receipts_that_it_repeated() -> None:
    made = receipts(A)
    made.hold(B, (DIGEST, OTHER), 600)
    made.doubt(B)
    made.hold(B, (OTHER,), 700)
    assert made.holding(DIGEST) == {A, B}
    made.settle_doubt(B)
    assert (made.holding(DIGEST), made.holding(OTHER)) == ({A}, {B})
    made.settle_doubt(C)
    assert made.named.keys() == {A, B}


def test_told_holders_are_few_sorted_and_spread() -> None:
    made = receipts()
    peers = [PeerId(f"{number:032x}") for number in range(30)]
    digests = [Digest(bytes([number]) * 32) for number in range(2)]
    for peer in peers:
        made.hold(peer, digests, 600)
    told = [made.told_holders(digest) for digest in digests]
    for holders in told:
        assert len(holders) == HOLDERS_TOLD_MAX
        assert list(holders) == sorted(set(holders))
    assert told[0] != told[1]
    assert made.told_holders(sha256(b"unknown")) == ()


def test_with_many_authors_one_holder_of_each_payload_is_told() -> None:
    made = receipts(copies_min=0)
    for number in range(HOLDERS_TOLD_IN_ALL + 1):
        made.announce(PeerId(f"{number:032x}"), sha256(number.to_bytes(2, "big")), 500)
    first = sha256(bytes(2))
    made.hold(A, (first,), 600)
    made.hold(B, (first,), 600)
    assert len(made.told_holders(first)) == 1
