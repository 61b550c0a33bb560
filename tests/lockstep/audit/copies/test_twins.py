"""Two like payloads of one round: the copy follows the gradient of another's samples, and nobody is
taken for one that sends its own work.
"""

from itertools import product

import numpy as np
import pytest

from lockstep.audit.copies.judge import EARLY_ROUNDS
from lockstep.audit.copies.likeness import Sent
from lockstep.audit.copies.twins import Twins, copies, crossing
from protocol.audit.thresholds import DEMO
from protocol.codec.evidence import CopySource, Cross, words
from protocol.ids import PeerId, RunId, sha256

RUN = RunId("ab" * 16)
A, B, C = (PeerId(f"{number:032x}") for number in range(3))
ROUND, PLACES = 3, 1024


def sent(author: PeerId, round: int = ROUND) -> Sent:
    return Sent(round, author, sha256(author.encode()))


def twins(likeness: float = 1.0, round: int = ROUND, usual: float = 1.0) -> Twins:
    return Twins(sent(A, round), sent(B, round), likeness, usual)


def gradients(random: np.random.Generator, differing: int) -> tuple[np.ndarray, np.ndarray]:
    """Signs of the gradients of A and B at the places of one payload."""
    first = random.choice(np.array([-1, 1], np.int8), PLACES)
    second = first.copy()
    second[random.choice(PLACES, differing, replace=False)] *= -1
    return first, second


def followed(
    random: np.random.Generator, origin: PeerId, *, differing: int = 150, own: float = 0.9
) -> dict[tuple[PeerId, PeerId], np.ndarray]:
    """Two equal payloads that follow the gradient of one author in this part of their signs."""
    of = dict(zip((A, B), gradients(random, differing), strict=True))
    signs = np.where(random.random(PLACES) < own, of[origin], -of[origin])
    return {
        (one, other): (of[one] * signs).astype(np.int8) for one, other in product((A, B), (A, B))
    }


@pytest.mark.parametrize(("origin", "copy"), [(A, B), (B, A)])
def test_one_audit_of_both_tells_the_copy_from_its_origin(origin: PeerId, copy: PeerId) -> None:
    random = np.random.default_rng(0)
    for own in (1.0, 0.9, 0.8):
        (evidence,) = copies([twins()], followed(random, origin, own=own), RUN, DEMO)
        (audit,) = evidence.audits
        assert (evidence.author, evidence.finding) == (copy, "copied work")
        assert audit.source == CopySource(origin, ROUND, sha256(origin.encode()))
        assert audit.cross
        assert audit.cross.own < 0.3 * audit.cross.differ
    assert words(evidence) == f"work audit: 100 % of it copied from {origin[:8]}; round 3"


def test_honest_work_that_happens_to_be_alike_is_no_copy() -> None:
    random = np.random.default_rng(1)
    for own in (1.0, 0.8, 0.68, 0.5):
        one, other = followed(random, A, own=own), followed(random, B, own=own)
        both = {pair: one[pair] if pair[1] == A else other[pair] for pair in one}
        assert not copies([twins(usual=0.05)], both, RUN, DEMO)


def test_a_payload_that_follows_neither_gradient_accuses_nobody_once_in_many_tries() -> None:
    random = np.random.default_rng(2)
    for _ in range(2000):
        assert not copies([twins()], followed(random, A, own=0.5), RUN, DEMO)


def test_gradients_that_hardly_differ_tell_nothing() -> None:
    random = np.random.default_rng(3)
    assert not copies([twins()], followed(random, A, differing=40, own=1.0), RUN, DEMO)
    assert copies([twins()], followed(random, A, differing=42, own=1.0), RUN, DEMO)


def test_where_one_of_both_was_not_audited_nobody_is_accused() -> None:
    whole = followed(np.random.default_rng(4), A)
    for missing in whole:
        left = {pair: signs for pair, signs in whole.items() if pair != missing}
        found = {each.author for each in copies([twins()], left, RUN, DEMO)}
        assert found == (set() if missing[1] == B else {B})
    assert not copies([], whole, RUN, DEMO)


def test_payloads_that_are_less_alike_than_copies_accuse_nobody() -> None:
    whole = followed(np.random.default_rng(5), A)
    assert not copies([twins(likeness=0.94)], whole, RUN, DEMO), "in the first rounds"
    later = twins(likeness=0.5, round=EARLY_ROUNDS, usual=0.06)
    assert copies([later], whole, RUN, DEMO)
    assert not copies([twins(likeness=0.5, round=EARLY_ROUNDS, usual=0.2)], whole, RUN, DEMO)


def test_places_without_a_sign_are_not_counted() -> None:
    own = np.array([1, -1, 0, 1, -1], np.int8)
    other = np.array([-1, 1, 1, 1, 0], np.int8)
    assert crossing(own, other) == Cross(2, 1)
