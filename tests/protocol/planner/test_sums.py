"""Bytes of a round with sums beside what is really encoded, and the crowd from which they pay."""

import numpy as np
import pytest

from protocol.codec.payload import Coefficients, Header, encode
from protocol.codec.payload_shape import PayloadShape
from protocol.codec.sums import encode_sums, rounded
from protocol.ids import PeerId, RunId
from protocol.limits import MEMBERS_MAX
from protocol.planner.links import IDEAL, Network, exchange_s, summed_s
from protocol.planner.methods import MethodTraffic, predicted
from protocol.planner.parameters import Size
from protocol.planner.sums import (
    AUTHORS_MIN,
    SUMMED,
    authors_from,
    parts_bytes,
    results_bytes,
    round_bytes,
    summed,
    with_sums,
)
from protocol.runfile import ModelSpec, RunSpec
from protocol.sections.algorithm import AlgorithmSpec
from protocol.sums.adding import COARSE
from protocol.sums.part_list import list_of
from protocol.sums.parts import cut
from protocol.sums.ranges import range_count
from tests.protocol.planner.settings import PASS, lines, setting

SIGNS = AlgorithmSpec()
SMALL = Size(115_584, 32)
"""The network of the study's first text."""

LARGE = Size(4_000_000, 1000)


def test_results_of_the_study_are_met() -> None:
    for chunks, measured in ((32, 18_946), (43, 25_718)):
        found = results_bytes(summed(SIGNS), Size(4096 * chunks, chunks), 32)
        assert found == pytest.approx(measured, rel=0.05)


@pytest.mark.parametrize("authors", [2, 5, 9, 32, 128])
def test_results_of_votes_at_places_drawn_evenly_are_met_to_a_third(authors: int) -> None:
    chunks, top_k = 8, SUMMED["top_k"]
    random = np.random.default_rng(authors)
    sums = np.zeros((chunks, 4096), np.int32)
    for _ in range(authors):
        for row in sums:
            places = random.permutation(4096)[:top_k]
            sizes = np.repeat([700, 1100], [top_k // 2, top_k - top_k // 2])
            row[places] += sizes * random.choice((-1, 1), top_k)
    blob = encode_sums(rounded(sums, np.ones(chunks, np.uint8), COARSE))
    found = results_bytes(summed(SIGNS), Size(4096 * chunks, chunks), authors)
    assert found == pytest.approx(len(blob), rel=0.34)


@pytest.mark.parametrize("chunks", [1, 40, 300])
def test_parts_and_their_list_weigh_what_is_expected(chunks: int) -> None:
    algorithm, random = summed(SIGNS), np.random.default_rng(chunks)
    shape = PayloadShape.of(algorithm, chunks)
    rows = [np.sort(random.permutation(4096)[: shape.top_k]) for _ in range(chunks)]
    values = np.tile(np.repeat([2, -1], shape.top_k // 2), chunks).astype(np.int16)
    scales = np.tile(np.array([200, 205], np.uint8), (chunks, 1))
    counts = np.full(chunks, shape.top_k, np.uint16)
    sent = Coefficients(counts, np.concatenate(rows).astype(np.uint16), values, scales)
    payload = encode(Header(RunId("ab" * 16), 300, PeerId("1" * 32)), sent, shape)
    parts = cut(payload, shape, range_count(chunks, 20))
    total = sum(map(len, parts)) + len(list_of(parts).blob)
    expected = parts_bytes(algorithm, Size(4096 * chunks, chunks), 20)
    assert expected == pytest.approx(total, rel=0.02, abs=40)


def test_a_crowd_pays_from_where_it_sends_less_and_never_below_nine() -> None:
    for algorithm in (SIGNS, AlgorithmSpec(top_k=96), AlgorithmSpec(top_k=1000)):
        least = authors_from(algorithm, SMALL)
        assert AUTHORS_MIN <= least <= MEMBERS_MAX

        def bytes_of(spec: RunSpec, authors: int) -> float:
            return round_bytes(spec, SMALL, authors)

        before = RunSpec(algorithm=algorithm)
        after = with_sums(before, SMALL)
        assert bytes_of(after, least) < bytes_of(before, least)
        if least > AUTHORS_MIN:
            forced = after.rounds.model_copy(update={"sums": least - 1})
            early = after.model_copy(update={"rounds": forced})
            assert bytes_of(early, least - 1) >= bytes_of(before, least - 1)
    assert authors_from(SIGNS, SMALL) == 10, "parts of two chunks have headers of their own"
    assert authors_from(SIGNS, LARGE) == AUTHORS_MIN
    assert authors_from(AlgorithmSpec(top_k=32), SMALL) > 2 * AUTHORS_MIN
    assert authors_from(AlgorithmSpec(name="demo", top_k=32), SMALL) == 0


def test_a_round_with_sums_does_not_grow_with_the_crowd() -> None:
    spec = with_sums(RunSpec(), LARGE)
    assert (spec.rounds.sums, spec.algorithm.top_k, spec.algorithm.value_bits) == (9, 384, 2)
    assert (spec.algorithm.gain, spec.algorithm.fade) == (3.0, 0.0)
    few, many = (round_bytes(spec, LARGE, members) for members in (16, 1000))
    assert many < 1.35 * few
    everybody = [round_bytes(RunSpec(), LARGE, members) for members in (16, 1000)]
    assert everybody[1] == pytest.approx(999 / 15 * everybody[0])
    assert round_bytes(spec, LARGE, 8) == pytest.approx(7 * round_bytes(spec, LARGE, 2))
    unknown = spec.model_copy(update={"model": ModelSpec(type="mamba", config={})})
    assert round_bytes(unknown, LARGE, 16) == pytest.approx(15 * round_bytes(unknown, LARGE, 2))


def test_a_predicted_round_with_sums_waits_for_parts_and_then_for_results() -> None:
    traffic = MethodTraffic(gradient=1e9, payload=2e6, parameters=5e8, results=3e6)
    found = predicted(setting(40, PASS, traffic=traffic), "demo")
    assert found.up_bytes == 2 * 2e6 + 3e6
    network = Network(lines(40))
    exchange = summed_s(network, 4e6, 3e6, IDEAL)
    assert found.exposed_s == pytest.approx(exchange)
    at_least = 8 * (4e6 / 2e7 + 3e6 / 2e7)
    assert at_least < exchange < at_least + 0.5
    assert exchange < exchange_s(network, 1e6, IDEAL), "39 payloads of half the size"
    assert summed_s(Network(lines(1)), 4e6, 3e6, IDEAL) == 0
