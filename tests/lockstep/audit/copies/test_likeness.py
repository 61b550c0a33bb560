"""Likeness of payloads: copies are found whatever is done to some of their places and signs."""

from dataclasses import replace

import numpy as np
import pytest

from lockstep.audit.copies import likeness as module
from lockstep.audit.copies.likeness import (
    NEAR,
    NEAR_MAX,
    Sent,
    SketchWindow,
    drawn_chunks,
    likeness,
    opposed,
    part_of,
    sketch_of,
    turned,
)
from protocol.codec.payload import Coefficients, decode
from protocol.ids import PeerId, sha256
from tests.lockstep.audit.copies.post import SHAPE, A, B, C, Post

CHUNKS = drawn_chunks(7, SHAPE.chunks)


def test_strangers_share_next_to_nothing_and_copies_all() -> None:
    post = Post()
    one, other = post.work(), post.work()
    assert likeness(one, one) == 1
    assert likeness(one, other) < 0.05


@pytest.mark.parametrize("part", [1.0, 0.75, 0.5])
def test_a_copy_with_places_of_its_own_is_as_like_as_what_it_kept(part: float) -> None:
    post = Post()
    one = post.work()
    assert likeness(post.near(one, part), one) == pytest.approx(part, abs=0.02)


def test_a_place_of_a_sketch_has_the_scale_of_its_value() -> None:
    one = part_of(Post().work(), CHUNKS)
    marked = np.arange(len(one.values)) % 2 == 0
    sent = replace(one, values=(one.values * (1 + marked)).astype(np.int16))
    scales = np.stack([np.arange(len(CHUNKS)), np.arange(len(CHUNKS)) + 100.0], axis=1)
    sketch = sketch_of(Sent(0, A, sha256(b"")), sent, scales.astype(np.float32))
    rows = np.repeat(np.arange(len(CHUNKS)), one.counts)
    np.testing.assert_array_equal(sketch.scales, rows + 100 * marked)
    assert set(sketch.signs.tolist()) == {-1, 1}


def test_turned_signs_hide_no_copy() -> None:
    one = Post().work()
    assert likeness(one, replace(one, values=-one.values)) == 1


def test_a_smaller_payload_is_measured_by_its_own_places() -> None:
    one = Post().work()
    ends = np.cumsum(one.counts)[:8]
    first = slice(0, int(ends[-1]))
    counts = one.counts.copy()
    counts[8:] = 0
    part = Coefficients(counts, one.indices[first], one.values[first])
    assert likeness(part, one) == likeness(one, part) == 1


def test_a_few_places_tell_nothing() -> None:
    one = Post().work()
    counts = np.zeros_like(one.counts)
    counts[0] = SHAPE.top_k
    few = Coefficients(counts, one.indices[: SHAPE.top_k], one.values[: SHAPE.top_k])
    none = Coefficients(np.zeros_like(one.counts), one.indices[:0], one.values[:0])
    assert likeness(few, few) == likeness(none, none) == 0


def test_a_window_names_the_nearest_payloads_of_all_rounds() -> None:
    post, window = Post(), SketchWindow()
    original = post.work()
    for work in (original, post.work(), post.near(original, 0.6)):
        post.commit({A: work, B: post.work()})
    found = []
    for round, works in enumerate(post.commits):
        sketches = [
            sketch_of(
                post.sent(round, entry.author),
                part_of(decode(post.payloads[entry.digest], SHAPE)[1], CHUNKS),
            )
            for entry in works.entries
        ]
        found.append(window.add(sketches))
        assert window.add(sketches).near == [], "a round that comes again is known"
    assert [len(each.near) for each in found] == [0, 0, 1]
    (near,) = found[2].near
    assert (near.sent, near.earlier) == (post.sent(2, A), post.sent(0, A))
    assert near.likeness == pytest.approx(0.6, abs=0.1)
    assert [len(each.usual) for each in found] == [0, 4, 4], "those of the round before"
    assert max(found[2].usual) < 0.1


def test_a_window_is_bounded_and_keeps_the_newest_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PLACES_KEPT", 3 * len(CHUNKS) * SHAPE.top_k)
    post, window, work = Post(), SketchWindow(), Post(1).work()
    near = 0
    for round in range(6):
        post.commit({A: work, B: work, C: work})
        sent = [post.sent(round, author) for author in (A, B, C)]
        found = window.add([sketch_of(each, part_of(work, CHUNKS)) for each in sent]).near
        near += len(found)
        assert all(each.likeness >= NEAR for each in found)
    assert window.sent_by(A, 5) == post.sent(5, A)
    assert window.sent_by(A, 4) is None
    assert near == 6 * 3
    assert NEAR_MAX >= 2


def test_a_turned_sign_counts_by_the_square_of_how_far_the_step_moves_by_it() -> None:
    post, scales = Post(), np.ones(len(CHUNKS), np.float32)
    work = post.work()
    post.commit({A: work, B: work, C: work})
    own = part_of(work, CHUNKS)
    signs = np.repeat(np.where(np.arange(len(CHUNKS)) < 4, -1, 1), own.counts)
    shadow = replace(own, values=(own.values * signs).astype(np.int16))
    scales[:4] = 4
    honest = [sketch_of(post.sent(0, author), own) for author in (A, B)]
    plain, weighed = (sketch_of(post.sent(0, C), shadow, each) for each in (None, scales))
    places = own.values.size
    assert turned([*honest, plain])[C] == (4 / len(CHUNKS), places)
    share, told = turned([*honest, weighed])[C]
    large, small = 4 * 16, len(CHUNKS) - 4
    assert share == pytest.approx(large / (large + small))
    top_k = places // len(CHUNKS)
    assert told == round(top_k * (large + small) ** 2 / (4 * 16**2 + small))
    assert opposed([*honest, plain]) == set()
    assert opposed([*honest, weighed]) == {C}


def test_three_of_eight_that_say_large_scales_do_not_outvote_the_others() -> None:
    own = part_of(Post().work(), CHUNKS)
    against = replace(own, values=-own.values)
    loud = np.full(len(CHUNKS), 4, np.float32)
    authors = [PeerId(f"{number:032x}") for number in range(8)]
    sent = [Sent(0, author, sha256(author.encode())) for author in authors]
    sketches = [sketch_of(each, own) for each in sent[:5]]
    sketches += [sketch_of(each, against, loud) for each in sent[5:]]
    assert opposed(sketches) == set(authors[5:])
