"""The benchmark of a coordinator's cost: its runs commit, and what must not grow with the square
does not.
"""

import json
import sys
from pathlib import Path

import pytest

from tests.benchmarks import scale


def test_a_run_commits_every_round_and_counts_its_messages() -> None:
    row = scale.measure(12, 3, seed=1, witnesses=True)
    assert (row["committed"], row["messages_per_round"]["in Announced"]) == (3, 12)
    assert row["messages_per_round"]["out RoundCommitted"] == 12
    assert row["bytes_per_round"]["out"] > row["bytes_per_round"]["in"] > 0
    assert row["cpu_ms_per_round"]["all"] == pytest.approx(
        sum(value for part, value in row["cpu_ms_per_round"].items() if part != "all")
    )


def test_receipts_grow_with_the_members_and_not_with_their_square() -> None:
    small, large = (scale.measure(count, 1, seed=1, witnesses=True) for count in (50, 150))
    grown = large["messages_per_round"]["in Holding"] / small["messages_per_round"]["in Holding"]
    assert 2 < grown < 4
    all_of_them = scale.measure(150, 1, seed=1, witnesses=False)
    assert all_of_them["bytes_per_round"]["in"] > 3 * large["bytes_per_round"]["in"]


def test_with_summers_members_report_parts_and_every_round_is_added() -> None:
    row = scale.measure(24, 2, seed=1, witnesses=True, sums=True)
    assert (row["committed"], row["messages_per_round"].get("in Holding")) == (2, None)
    assert row["messages_per_round"]["in Summed"] == 2 * 16, "two of each range"
    assert row["messages_per_round"]["out SumsAsked"] <= 24
    plain = scale.measure(24, 2, seed=1, witnesses=True)
    assert row["bytes_per_round"]["out"] < 1.5 * plain["bytes_per_round"]["out"]


def test_the_whole_list_of_members_is_not_sent_to_all_at_each_join() -> None:
    small, large = (
        scale.measure(count, 1, seed=1, witnesses=True)["joining"]["bytes_out"]
        for count in (50, 200)
    )
    assert large / small < 20, "the square of four is sixteen: each newcomer hears the list once"


def test_the_command_prints_a_line_for_each_size_and_writes_json(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "scale.json"
    monkeypatch.setattr(
        sys, "argv", ["scale", "--members", "4,8", "--rounds", "1", "--json", str(path)]
    )
    scale.main()
    document = json.loads(path.read_text())
    assert [row["members"] for row in document["sizes"]] == [4, 8]
    assert len(capsys.readouterr().out.splitlines()) == 3
