"""The measurement for a graphics card does on a CPU what it says, and survives its own parts."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks.accelerator.cards import flops_per_token, peak_flops
from tests.benchmarks.accelerator.parts import Findings, Part, measured
from tests.benchmarks.accelerator.sizes import EQUAL_ROUNDS, Sizes, sizes_for

PATIENCE_S = 600

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    """The findings of all parts on a CPU."""
    path = tmp_path_factory.mktemp("accelerator") / "found.json"
    words = ["--device", "cpu", "--minutes", str(PATIENCE_S / 60), "--json", str(path)]
    subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.accelerator", *words],
        timeout=PATIENCE_S + 60,
        check=True,
    )
    found: Mapping[str, Any] = json.loads(path.read_text())["parts"]
    assert {each["outcome"] for each in found.values()} == {"measured"}, found
    return found


@slow
@pytest.mark.timeout(PATIENCE_S + 120)
@pytest.mark.parametrize("algorithm", ["local_steps", "demo"])
def test_all_replicas_have_one_digest_after_each_round(
    parts: Mapping[str, Any], algorithm: str
) -> None:
    found = parts["equal bits"][algorithm]
    assert (found["rounds"], found["payloads_ignored"]) == (EQUAL_ROUNDS, 0)
    assert found["rounds_unequal"] == []
    first, *others = found["digests"].values()
    assert others == [first] * 3
    assert len(set(first)) == EQUAL_ROUNDS, "every round moves the parameters"
    assert found["payloads_unlike_the_cpus"]["device, bf16"] == EQUAL_ROUNDS


@slow
def test_each_work_has_its_ratio_to_both_optimizers_of_torch(parts: Mapping[str, Any]) -> None:
    found = parts["times"]
    assert found["repeats"] == sizes_for("cpu").repeats
    assert found["ratio_to"].keys() == {"Muon", "AdamW"}
    for ratios in found["ratio_to"].values():
        assert ratios.keys() == {"local step", "extraction", "apply", "exchange"}
        assert all(0 < each["least"] <= each["median"] <= each["most"] for each in ratios.values())


@slow
def test_a_run_of_one_node_is_committed_and_its_tokens_are_counted(
    parts: Mapping[str, Any],
) -> None:
    found, sizes = parts["one node"], sizes_for("cpu")
    assert found["rounds"] == sizes.rounds
    assert found["samples"] >= sizes.rounds
    for each in (found["run"], found["while_training"]):
        assert each["tokens_per_second"] > 0
        assert each["flops_per_second"] > 0
        assert each["mfu"] is None, "a CPU is no card"


@slow
def test_a_pass_is_measured_in_each_of_its_ways_and_compiled(parts: Mapping[str, Any]) -> None:
    found = parts["passes"]
    ways = {(each, again) for each in (False, True) for again in (False, True)}
    for blocks in (found["as it is"], found["compiled"]):
        rows = blocks["ways"]
        assert {(each["pieces"], each["recomputes"]) for each in rows} == ways
        assert all(each["peak_bytes"] > 0 and each["tokens_per_second"] > 0 for each in rows)
        assert [each["queue"] for each in blocks["queue"]] == [False, True]
        assert all(each["tokens_per_second"] > 0 for each in blocks["queue"])
    assert found["predicted_bytes_in_float32"]["kept"] > 0


@slow
def test_the_peak_of_memory_stands_beside_what_is_told(parts: Mapping[str, Any]) -> None:
    rows = parts["memory"]["rows"]
    assert [row["overlap"] for row in rows] == [0, 1]
    assert rows[0]["told_bytes"] < rows[1]["told_bytes"]
    assert all(row["peak_bytes"] > 0 and "of memory" in row["told"][0] for row in rows)


@slow
def test_a_large_network_makes_a_round_and_each_part_has_its_row(parts: Mapping[str, Any]) -> None:
    found = parts["large"]
    assert [row["part"] for row in found["rows"]] == [
        "genesis",
        "step 0, computed again",
        "step 1, computed again",
        "step 0, kept",
        "step 1, kept",
        "apply",
    ]
    assert 0 < found["told_on_the_card_bytes"] < 20 * found["parameters"]


def test_three_nodes_of_one_run_agree_after_each_round(parts: Mapping[str, Any]) -> None:
    found = parts["shared card"]
    assert len(found["nodes"]) == 3
    assert len(found["rounds"]) >= sizes_for("cpu").rounds
    assert {(each["reports"], each["dissent"]) for each in found["rounds"]} == {(3, 0)}
    assert found["agreed"]


# ---- the parts of a measurement


def tells(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    yield {"device": sizes.device}
    yield {"device": sizes.device, "more": True}


def hangs(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    yield {"so far": 1}
    time.sleep(PATIENCE_S)


def fails(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    yield {"so far": 2}
    raise RuntimeError("no room\nfor more")


def dies(sizes: Sizes, directory: Path) -> Iterator[Findings]:
    yield {"so far": 3}
    os._exit(3)


class Clock:
    """Stands still, until something is to take long."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@slow
def test_a_part_that_hangs_fails_or_dies_keeps_its_findings_and_the_next_is_made() -> None:
    written: list[dict[str, Findings]] = []
    clock = Clock()

    def write(found: Mapping[str, Findings]) -> None:
        written.append(dict(found))
        if "so far" in found["hangs"]:
            clock.now_s = 1000

    tried = {"hangs": Part(hangs, 1), "fails": Part(fails, 3)}
    tried |= {"dies": Part(dies, 3), "tells": Part(tells, 3)}
    measured(tried, sizes_for("cpu"), 10_000, write, clock=clock)
    assert {each["outcome"] for each in written[0].values()} == {"not reached"}
    assert [each["tells"]["outcome"] for each in written[-4:]] == [
        "not reached", "under way", "under way", "measured",
    ]  # fmt: skip
    assert written[-1] == {
        "hangs": {"outcome": "cut off after 1000 s", "seconds": 1000, "so far": 1},
        "fails": {"outcome": "failed: RuntimeError: no room", "seconds": 0, "so far": 2},
        "dies": {"outcome": "failed: its process ended with 3", "seconds": 0, "so far": 3},
        "tells": {"outcome": "measured", "seconds": 0, "device": "cpu", "more": True},
    }


def test_a_part_without_time_is_not_begun() -> None:
    written: list[Mapping[str, Findings]] = []
    measured({"tells": Part(tells, 1)}, sizes_for("cpu"), 1, written.append)
    assert [each["tells"] for each in written] == [{"outcome": "not reached"}]


def test_only_a_known_card_has_a_peak() -> None:
    assert peak_flops("NVIDIA H200") == 989e12
    assert peak_flops("NVIDIA H200 NVL") is None


def test_a_token_of_gpt2_takes_0_86_billion_operations() -> None:
    assert flops_per_token(124_439_808, {"vocab_size": 50257}, 1024) == pytest.approx(0.86e9, 0.01)
