"""No foreign bytes break a reader: the kept corpus, and some new mutants in every run."""

import random
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import RemoteProtocolError
from protocol.sums import movements as counting
from tests.fuzz import applying, histories, ports, runner, summing
from tests.fuzz.mutation import BYTES_MAX, mutant
from tests.fuzz.runner import Fuzzer, read_corpus, write_corpus
from tests.fuzz.targets import Target, targets

EXECUTIONS = 20_000

READERS = targets() | histories.targets() | ports.targets() | summing.targets()


@pytest.mark.parametrize("name", sorted(READERS))
def test_a_reader_takes_what_is_right(name: str) -> None:
    target = READERS[name]
    for seed in target.seeds:
        target.judge(seed)


def test_the_kept_corpus_and_new_mutants_break_no_promise() -> None:
    fuzzer = Fuzzer(READERS | applying.targets(), seed=1)
    fuzzer.replay(read_corpus())
    fuzzer.run(EXECUTIONS)
    assert [(name, blob.hex(), wrong) for name, blob, wrong in fuzzer.report.findings] == []
    assert all(fuzzer.report.executions[name] > 10 for name in applying.targets())


def test_a_step_that_depends_on_the_order_of_authors_is_found_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(counting, "beside_median", lambda codes, _: np.minimum(codes, codes[:1]))
    fuzzer = Fuzzer({"apply movements": applying.targets()["apply movements"]}, seed=0)
    fuzzer.run(3)
    applying.replicas.cache_clear()  # their states differ for good
    assert "AssertionError: two states" in fuzzer.report.findings[0][2]


def careless(blob: bytes) -> None:
    """A reader with two faults behind a check."""
    if blob[:2] != b"OK":
        raise RemoteProtocolError("expected OK")
    if len(blob) < 6:
        raise IndexError("too short")
    assert blob[4] != 255, "a promise"


def test_a_careless_reader_is_found_out() -> None:
    fuzzer = Fuzzer({"careless": Target(careless, (b"OK1234",))}, seed=0)
    fuzzer.run(20_000)
    wrong = " ".join(text for _, _, text in fuzzer.report.findings)
    assert "IndexError" in wrong
    assert "AssertionError: a promise" in wrong


def test_a_slow_reader_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "SLOW_S", -1.0)
    fuzzer = Fuzzer({"slow": Target(lambda blob: None, (b"x",))}, seed=0)
    fuzzer.run(1)
    assert "took" in fuzzer.report.findings[0][2]


def test_inputs_that_take_a_new_way_are_kept_and_come_back(tmp_path: Path) -> None:
    fuzzer = Fuzzer({"careless": Target(careless, (b"OK1234",))}, seed=0)
    fuzzer.replay([("careless", b"no"), ("unknown", b"x")])
    assert fuzzer.corpus() == [("careless", b"no")]
    write_corpus(fuzzer.corpus(), tmp_path / "corpus.jsonl.xz")
    assert read_corpus(tmp_path / "corpus.jsonl.xz") == fuzzer.corpus()


def test_mutants_follow_from_the_seed_and_are_bounded() -> None:
    pool = [b"", b"a" * 5000]
    one, other = ([mutant(pool, chance) for _ in range(300)] for chance in _twice())
    assert one == other
    assert max(map(len, one)) <= BYTES_MAX
    assert len(set(one)) > 250


def _twice() -> tuple[random.Random, random.Random]:
    return random.Random(1), random.Random(1)
