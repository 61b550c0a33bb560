"""Lots: nobody but the auditor can foretell what rounds it audits, anybody can check them later."""

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from protocol.audit.lots import CHANCE_MAX, LOT_BYTES, draw, is_own
from protocol.handshake import public_bytes
from protocol.ids import PeerId, RunId

RUN = RunId("ab" * 16)
KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(2))
PANEL = 4


def test_an_auditor_has_one_lot_in_a_round_and_nobody_else_has_it() -> None:
    own = draw(KEY, RUN, 7, 200)
    assert own == draw(KEY, RUN, 7, 200), "it cannot draw again"
    assert is_own(public_bytes(KEY), RUN, 7, own.lot)
    assert not is_own(public_bytes(OTHER), RUN, 7, own.lot)
    assert not is_own(public_bytes(KEY), RUN, 8, own.lot)
    assert not is_own(public_bytes(KEY), RunId("cd" * 16), 7, own.lot)
    for forged in (bytes(LOT_BYTES), b"", own.lot[:-1]):
        assert not is_own(public_bytes(KEY), RUN, 7, forged)
    assert not is_own(b"", RUN, 7, own.lot), "nor has one without a key"


def drawn(key: Ed25519PrivateKey, authors: int, share: int = 200) -> list[int]:
    draws = ((round, draw(key, RUN, round, share)) for round in range(1500))
    return [round for round, each in draws if each.is_drawn(authors, panel=PANEL)]


@pytest.mark.parametrize(("authors", "chance"), [(4, 0.04), (16, 0.16), (1000, 0.5)])
def test_rounds_are_drawn_as_often_as_the_auditors_part_of_the_compute_pays_for_twice(
    authors: int, chance: float
) -> None:
    assert 0.7 * chance < len(drawn(KEY, authors)) / 1500 < 1.3 * chance
    assert draw(KEY, RUN, 0, 10_000).chance(authors, panel=PANEL) <= CHANCE_MAX


def test_two_auditors_draw_rounds_of_their_own() -> None:
    one, other = set(drawn(KEY, 16)), set(drawn(OTHER, 16))
    assert len(one & other) < 0.4 * len(one), "0.16 of them by chance"


def test_a_larger_part_draws_the_same_rounds_and_more() -> None:
    assert set(drawn(KEY, 4)) < set(drawn(KEY, 4, share=1000))


def test_authors_come_in_an_order_of_the_lot() -> None:
    authors = [PeerId(f"{number:032x}") for number in range(4)]
    first = [draw(KEY, RUN, round, 200).order(authors)[0] for round in range(400)]
    assert sorted(draw(KEY, RUN, 0, 200).order(authors)) == authors
    assert all(60 < first.count(author) < 140 for author in authors)
