"""The screen of a joined machine: 80 columns, the state in words, the reason with it."""

import logging
from typing import Any

import pytest

from lockstep.volunteer.screen import HINT, part_text, render, state_words
from lockstep.volunteer.watch import CALM_S, StateLog
from tests.lockstep.shared import printed

STATUS: dict[str, Any] = {
    "coordinator": "example:50700",
    "session": "connected",
    "sessions_lost": 2,
    "peer_id": "ea6978ebea74503383c964034df2c62a",
    "name": "attic",
    "hardware": "NVIDIA GeForce RTX 4090",
    "phase": "exchanges round 12",
    "round": 11,
    "loss": 3.25,
    "validation": {"loss": 3.5, "round": 9},
    "rounds": {"trained": 12, "counted": 9, "left_out": 3},
    "tokens": 12345,
    "share": 8,
    "members": 3,
    "bell_in_seconds": 4.2,
    "links": {"open": [{}], "missing": {"f" * 32: "nobody answers"}},
    "run": {"run_id": "c" * 32, "name": "first", "steps": 2000},
    "standing": {"state": "late", "reason": "by 1.2 s in round 11: its work took 6.2 s"},
    "traffic": {"payload_up_bytes": 1_000_000, "control_down_bytes": 2_000},
}


def test_the_screen_tells_everything_in_80_columns() -> None:
    text = printed(render(STATUS))
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "first (cccccccc): round 11, 2,000 steps in all",
        "attic (ea6978eb) · NVIDIA GeForce RTX 4090",
        "late: by 1.2 s in round 11: its work took 6.2 s",
        "exchanges round 12 · 4 s left",
        "3.2500 nats per token · validation 3.5000 after round 9",
        "counted in 9 of 12 rounds · 12,345 tokens · share 8 samples",
        "1 MB up · 2 kB down",
        "3 members · 1 linked · 1 not: ffffffff nobody answers",
        "connected · lost 2 times",
        "Ctrl-C finishes the round and leaves",
    ):
        assert words in text


def test_a_member_that_fell_silent_sees_that_it_was_removed_and_why() -> None:
    note = "removed by the coordinator: silent for 15 s; joining again"
    assert f"note     {note}" in printed(render(STATUS | {"note": note}))
    same = STATUS | {"note": "late in 4 rounds", "standing": {"state": "late in 4 rounds"}}
    assert "note" not in printed(render(same)), "nothing is said twice"


def test_data_that_do_not_come_are_said_with_the_reason() -> None:
    away = {"from": "https://a/b", "waits": "https://a/b/train-00000.bin answers with status 503"}
    assert "waits for its server" in printed(render(STATUS | {"data": away}))
    assert "waits for" not in printed(render(STATUS | {"data": {**away, "waits": ""}}))


def test_a_long_reason_is_folded_and_not_cut() -> None:
    reason = "cannot go on yet: " + "word " * 40 + "end"
    text = printed(render(STATUS | {"standing": {"state": "held", "reason": reason}}))
    assert max(map(len, text.splitlines())) <= 80
    assert "end" in text


def test_a_reason_that_says_the_state_stands_alone() -> None:
    waiting = {"state": "waiting", "reason": "waiting for members: 1 of 2 are ready"}
    assert state_words({"standing": waiting}) == "waiting for members: 1 of 2 are ready"


def test_a_node_that_starts_is_shown_too() -> None:
    text = printed(render({"phase": "opens its data", "coordinator": "example:50700"}))
    assert "at example:50700" in text
    assert "starting" in text


def test_where_there_is_no_terminal_each_change_of_state_is_a_record(
    caplog: pytest.LogCaptureFixture,
) -> None:
    journal = StateLog()
    counted = STATUS | {"standing": {"state": "counted", "reason": ""}}
    with caplog.at_level(logging.INFO):
        for now_s, status in [(0, counted), (1, counted), (2, STATUS), (3, STATUS), (4, counted)]:
            journal.look(status, float(now_s))
        journal.look(counted, 4 + CALM_S)
    assert caplog.messages == ["counted", state_words(STATUS), "counted", "counted"]
    assert vars(caplog.records[0])["counted"] == "9/12"


def test_a_payload_that_is_waited_for_is_named_with_its_source() -> None:
    waits = "round 12 waits for 1 of 3 payloads: 0123abcd's 8300 bytes (pulling from 4567cdef)"
    text = printed(render({"phase": "exchanges round 12", "waiting_for": waits}))
    assert waits in " ".join(text.replace("│", " ").split())


def test_the_hint_has_a_line_of_its_own_below_the_bar() -> None:
    *_, bar, hint = printed(render(STATUS)).splitlines()
    assert set(bar.strip()) <= set("━╸╺")
    assert hint.rstrip() == HINT
    assert printed(render(STATUS, hint="")).endswith("\n"), "a shell's prompt begins a line"


def test_the_screen_tells_the_time_left_the_part_the_standing_and_the_page() -> None:
    page = "http://run.example:8080/?me=ea6978ebea74503383c964034df2c62a"
    run = STATUS["run"] | {"seconds_left": 7300.0}
    key = {"rounds": 21, "needed": 50, "counts_after": 1130}
    text = printed(render(STATUS | {"run": run, "part": 0.1234, "key": key, "page": page}))
    assert max(map(len, text.splitlines())) <= 80
    for words in (
        "round 11, 2,000 steps in all, 2 hours left",
        "12 % of all work of the run so far",
        "new      21 of 50 rounds; your work always counts from about round 1,131",
        page,
    ):
        assert words in text
    for gone in ("left\n", "% of", "new  ", "http"):
        assert gone not in printed(render(STATUS)), "nothing is said of what is not known"


@pytest.mark.parametrize(
    ("part", "words"), [(0, ""), (0.999, "100 %"), (0.0123, "1.23 %"), (1e-9, "0.01 %")]
)
def test_a_part_is_told_as_precisely_as_it_matters(part: float, words: str) -> None:
    told = part_text({"part": part})
    assert told.startswith(words)
    assert bool(told) == bool(words)


def test_one_member_is_one_member() -> None:
    assert "1 member · " in printed(render(STATUS | {"members": 1}))


def test_each_rank_of_a_node_has_its_speed_and_its_memory() -> None:
    ranks = [
        {"memory_bytes": 3_200_000_000, "samples_per_second": 51.25},
        {"memory_bytes": 0, "samples_per_second": None},
    ]
    words = "ranks    0: 51.2 samples/s, 3.2 GB · 1: no pass yet, 0 B"
    assert words in printed(render(STATUS | {"ranks": ranks}))
    assert "ranks" not in printed(render(STATUS | {"ranks": []}))
