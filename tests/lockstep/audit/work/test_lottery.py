"""Panels are drawn by the auditor's lots, suspects first; audits keep to their part of the run's
compute.
"""

from collections import Counter

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lockstep.audit.work.lottery import BALANCE_S, SUSPECTS_MAX, Budget, panel
from protocol.audit.lots import Draw, draw
from protocol.audit.rule import PANEL
from protocol.ids import PeerId, RunId

RUN = RunId("ab" * 16)
KEYS = [Ed25519PrivateKey.from_private_bytes(bytes([number]) * 32) for number in range(2)]
AUTHORS = [PeerId(f"{number:032x}") for number in range(12)]


def lot(round: int, key: Ed25519PrivateKey = KEYS[0]) -> Draw:
    return draw(key, RUN, round, 200)


def drawn(
    round: int, key: Ed25519PrivateKey = KEYS[0], suspects: frozenset[PeerId] = frozenset()
) -> list[str]:
    return [*panel(lot(round, key), AUTHORS, suspects, lambda one, other: True)]


def test_everybody_is_drawn_about_as_often_and_another_auditor_draws_others() -> None:
    counts = Counter(author for round in range(600) for author in drawn(round))
    assert min(counts.values()) > 150
    assert max(counts.values()) < 250, "200 on average"
    assert sum(drawn(round) == drawn(round, KEYS[1]) for round in range(600)) < 10


def test_suspects_come_first_and_leave_room_for_others() -> None:
    suspects = frozenset(AUTHORS[:5])
    for round in range(50):
        found = drawn(round, suspects=suspects)
        assert len(found) == PANEL
        assert {*found[:SUSPECTS_MAX]} <= suspects


def test_companions_are_as_old_as_the_first_where_there_are_such() -> None:
    old = {*AUTHORS[:4]}
    for round in range(50):
        found = panel(lot(round), AUTHORS, (), lambda one, other: (one in old) == (other in old))
        assert len({author in old for author in found}) == 1


def test_a_small_round_is_audited_whole() -> None:
    assert sorted(panel(lot(0), AUTHORS[:2], (), lambda *_: True)) == AUTHORS[:2]
    assert panel(lot(0), [], (), lambda *_: True) == []


def test_audits_take_no_more_than_their_share_of_all_authors_time() -> None:
    budget, now_s, audited_s = Budget(0.02), 0.0, 0.0
    assert not budget.allows, "nothing is earned yet"
    for _ in range(10_000):
        now_s += 5.0  # a round of eight authors
        budget.earn(now_s, authors=8)
        if budget.allows:
            budget.spend(7.0)
            audited_s += 7.0
    assert 0.9 * 0.02 * 8 * now_s < audited_s <= 0.02 * 8 * now_s + BALANCE_S + 7.0
    assert audited_s == budget.spent_s


def test_a_quiet_hour_pays_for_no_hour_of_audits() -> None:
    budget = Budget(0.5)
    budget.earn(0.0, 8)
    budget.earn(3600.0, 8)
    assert budget.balance_s == BALANCE_S


def test_a_share_of_nothing_allows_no_audit() -> None:
    budget = Budget(0.0)
    for now_s in (0.0, 1e6):
        budget.earn(now_s, 8)
    assert not budget.allows
