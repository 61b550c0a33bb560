"""What a first start has measured: shown before the question, remembered, measured again when the
machine's settings are others.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.volunteer.measured import (
    MEASURED_NAME,
    FirstLook,
    bell_lines,
    look,
    reconsider,
    remember,
    remembered,
    turned_out_otherwise,
    with_passes,
)
from node.rehearsal import Rehearsal
from node.settings import NodeSettings
from protocol.ids import RunId
from protocol.run_info import RunInfo
from protocol.runfile import ModelSpec, RoundsSpec, RunSpec
from tests.support.tiny import tiny_spec

RUN = RunId("ab" * 16)
SPEC = RunSpec(rounds=RoundsSpec(compute_ms=4_000, publish_ms=2_000))
SETTINGS = NodeSettings("h:1", Path("x"), device="cpu", threads=2)


def a_pass(samples: int, pass_s: float = 1.0) -> Rehearsal:
    return Rehearsal(samples, samples, pass_s, pass_s, "")


def known(place: Path, run_id: RunId, settings: NodeSettings, memory_bytes: int) -> int:
    """Samples in a pass as they are remembered."""
    found = remembered(place, run_id, settings, memory_bytes)
    return found.micro_batch if found else 0


def test_a_size_is_remembered_for_its_run_and_the_same_machine(tmp_path: Path) -> None:
    assert known(tmp_path, RUN, SETTINGS, 0) == 0
    remember(tmp_path, RUN, SETTINGS, 0, a_pass(16))
    assert known(tmp_path, RUN, SETTINGS, 0) == 16
    assert known(tmp_path, RUN, replace(SETTINGS, name="attic"), 0) == 16
    assert known(tmp_path, RunId("cd" * 16), SETTINGS, 0) == 0
    assert known(tmp_path, RUN, replace(SETTINGS, device="cuda"), 0) == 0
    assert known(tmp_path, RUN, replace(SETTINGS, gpu_memory=50), 0) == 0
    assert known(tmp_path, RUN, replace(SETTINGS, ranks=2), 0) == 0
    assert known(tmp_path, RUN, SETTINGS, 10**9) == 0


def test_what_is_computed_again_is_remembered_and_said(tmp_path: Path) -> None:
    found = replace(a_pass(2), recomputes=True, reason="4 may not fit the memory that is allowed")
    remember(tmp_path, RUN, SETTINGS, 0, found)
    expected = replace(SETTINGS, micro_batch=2, recomputes=True)
    assert remembered(tmp_path, RUN, SETTINGS, 0) == expected == with_passes(SETTINGS, found)
    assert "pass: 2 samples, activations computed again to take less memory: 4 may" in "\n".join(
        bell_lines(FirstLook(found), SETTINGS, SPEC, {})
    )


@pytest.mark.parametrize("damage", [b"{", b'{"run_id": 1}', b"[]"])
def test_a_damaged_file_is_measured_again(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / MEASURED_NAME).write_bytes(damage)
    assert known(tmp_path, RUN, SETTINGS, 0) == 0


def test_a_size_that_is_none_counts_as_none(tmp_path: Path) -> None:
    remember(tmp_path, RUN, SETTINGS, 0, a_pass(-4))
    assert known(tmp_path, RUN, SETTINGS, 0) == 0


def after(samples: int, quickest_s: float, made: int = 100) -> dict[str, object]:
    """The last status of a node that has made passes."""
    return {"passes": {"samples": samples, "quickest_s": quickest_s, "made": made}}


@pytest.mark.parametrize(
    ("status", "again"),
    [
        (after(16, 0.8), False),
        (after(16, 0.3), True),  # it was measured beside other programs
        (after(16, 2.5), True),  # another machine, or one that is never free
        (after(16, 0.3, made=3), False),
        (after(8, 0.3), False),  # memory ran out, or shares are smaller
        ({}, False),
    ],
)
def test_a_size_whose_passes_turn_out_quite_another_time_is_measured_again_at_the_next_start(
    tmp_path: Path, status: dict[str, object], *, again: bool
) -> None:
    remember(tmp_path, RUN, SETTINGS, 0, a_pass(16, pass_s=1.0))
    reconsider(tmp_path, RUN, status)
    assert known(tmp_path, RUN, SETTINGS, 0) == (0 if again else 16)
    reconsider(tmp_path, RUN, status)  # where nothing is remembered


def test_the_reason_to_measure_again_names_both_times() -> None:
    words = turned_out_otherwise(4.0, 0.25, 1200)
    assert "took 4 s when it was measured" in words
    assert "the quickest of 1,200 since took 0.25 s" in words
    assert not turned_out_otherwise(0.0, 0.25, 1200), "the file of an older release"


def test_the_question_says_pass_bell_and_when_the_work_counts() -> None:
    seen = FirstLook(Rehearsal(4, 4, 0.5, 0.8, "16 are hardly quicker"))
    given, memory, bell, counted = bell_lines(seen, SETTINGS, SPEC, {})
    assert given == "pass: 4 samples: 16 are hardly quicker"
    assert memory.startswith("memory: up to ")
    assert bell.startswith("speed: fast enough: each round gives you ")
    assert counted.startswith("counted: not known")


def test_a_machine_that_is_too_slow_is_told_so_before_it_joins() -> None:
    seen = FirstLook(Rehearsal(1, 1, 7.0, 7.5, ""))
    _, _, bell, _ = bell_lines(seen, SETTINGS, SPEC, {})
    assert bell.startswith("speed: too slow: ")
    assert bell.endswith("; more --threads, or a GPU")


def test_a_limit_that_is_too_low_stands_in_the_question() -> None:
    seen = FirstLook(Rehearsal(1, 1, 0.5, 0.8, ""))
    members = {"members": [{}] * 200}
    low = replace(SETTINGS, download_limit=20_000)
    assert bell_lines(seen, low, SPEC, members)[-1].startswith("limits: --download-limit 20000")


def test_a_run_that_cannot_be_trained_here_is_named_before_the_question(tmp_path: Path) -> None:
    wrong = tiny_spec().model_copy(update={"model": ModelSpec(type="lama", config={})})
    seen = look(SETTINGS, RunInfo(wrong, RUN, b""), 0, finds=True)
    assert seen.rehearsal is None
    first, *_ = bell_lines(seen, SETTINGS, wrong, {})
    assert first.startswith("speed: none, because this machine cannot train the run: model.type")
