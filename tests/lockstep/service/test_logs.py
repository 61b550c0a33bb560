"""Log records: one line, with every field that was given."""

import logging
import re

import pytest

from lockstep.service.logs import (
    BYTES_ABOUT_PEERS,
    LINES_PER_MESSAGE,
    LINES_PER_PEER,
    LineFormatter,
    LineLimit,
    TerminalFormatter,
    log_to_standard_error,
)


@pytest.fixture(autouse=True)
def _logging_as_before() -> object:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = before[0], before[1]


def formatted(message: str, **fields: object) -> str:
    record = logging.makeLogRecord(
        {"name": "lockstep.x", "levelname": "INFO", "msg": message, **fields}
    )
    return LineFormatter().format(record)


def test_fields_follow_the_message_as_key_and_value() -> None:
    assert formatted("committed", round=3, loss=3.14159265, peer="ab12").endswith(
        " INFO lockstep.x committed round=3 loss=3.14159 peer=ab12"
    )


def test_a_value_with_spaces_or_line_ends_is_quoted_and_stays_on_the_line() -> None:
    line = formatted("skipped", reason='only 1 of "2"\ncontributors', empty="")
    assert line.endswith(r'''reason="only 1 of \"2\"\ncontributors" empty=""''')
    assert "\n" not in line


def test_on_a_terminal_a_line_is_short_and_says_the_same() -> None:
    fields = {"run": "ab" * 16, "peer": "1a2b3c4d" + "0" * 24, "digest": "f" * 64, "round": 3}
    record = logging.makeLogRecord({"levelno": 20, "msg": "committed", **fields})
    clock, _, line = TerminalFormatter().format(record).partition(" ")
    assert re.fullmatch(r"\d\d:\d\d:\d\d", clock)
    assert line == "committed peer=1a2b3c4d digest=ffffffff round=3"
    warned = logging.makeLogRecord({"levelno": logging.WARNING, "levelname": "WARNING", "msg": "x"})
    assert TerminalFormatter().format(warned).startswith("WARNING ")


def test_debug_decides_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_standard_error(debug=False)
    logging.getLogger("lockstep.x").debug("hidden")
    logging.getLogger("lockstep.x").info("shown")
    log_to_standard_error(debug=True)
    logging.getLogger("lockstep.x").debug("visible")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["shown", "visible"]


def test_no_foreign_text_forges_a_line_or_commands_a_terminal() -> None:
    hostile = "x\n2026-11-25 00:00:00,000 ERROR journal is lost\x1b[2J\u202e\x9b"
    line = formatted(f"relay joined {hostile}", addresses=hostile, peer=hostile)
    assert len(line.splitlines()) == 2
    assert line.splitlines()[1].startswith("    | ")
    assert "\x1b" not in line
    assert "\u202e" not in line
    assert "\x9b" not in line


def test_the_lines_of_a_traceback_are_indented() -> None:
    try:
        raise ValueError("x\nERROR journal is lost")
    except ValueError as error:
        record = logging.makeLogRecord({"msg": "bug", "exc_info": (ValueError, error, None)})
    first, *others = LineFormatter().format(record).splitlines()
    assert first.endswith("bug")
    assert others
    assert all(line.startswith("    | ") for line in others)


def records(count: int, message: str, **fields: str) -> list[logging.LogRecord]:
    return [
        logging.makeLogRecord(
            {"msg": message, "levelno": logging.INFO, "reason": f"text {number}", **fields}
        )
        for number in range(count)
    ]


def test_a_peer_causes_a_bounded_number_of_lines_whatever_their_texts() -> None:
    now_ms = 0
    limit = LineLimit(lambda: now_ms)
    passed = [limit.filter(record) for record in records(1000, "at fault", peer="ab12")]
    assert sum(passed) == LINES_PER_PEER
    assert limit.filter(records(1, "at fault", peer="cd34")[0])
    assert limit.filter(records(1, "link ended", peer="ab12")[0])
    now_ms = 60_000
    (later,) = records(1, "at fault", peer="ab12")
    assert limit.filter(later)


def test_the_number_of_lines_left_out_is_told() -> None:
    now_ms = 0
    limit = LineLimit(lambda: now_ms)
    for record in records(10, "at fault", peer="ab12"):
        limit.filter(record)
    now_ms = 60_000
    (later,) = records(1, "at fault", peer="ab12")
    assert limit.filter(later)
    assert vars(later)["left_out"] == 10 - LINES_PER_PEER


def test_ports_and_new_keys_give_no_more_lines() -> None:
    limit = LineLimit(lambda: 0)
    hosts = [records(1, "stalled", address=f"ipv4:192.0.2.1:{port}")[0] for port in range(100)]
    assert sum(map(limit.filter, hosts)) == LINES_PER_PEER
    keys = [records(1, "at fault", peer=f"{number:032x}")[0] for number in range(1000)]
    passed = [record for record in keys if limit.filter(record)]
    written = sum(len(LineFormatter().format(record)) + 1 for record in passed[LINES_PER_MESSAGE:])
    assert BYTES_ABOUT_PEERS - 200 < written <= BYTES_ABOUT_PEERS


def test_a_rare_message_passes_in_the_flood_of_another() -> None:
    limit = LineLimit(lambda: 0)
    for number in range(1000):
        limit.filter(records(1, "member joined", peer=f"{number:032x}")[0])
    rare = [records(1, "member evicted", peer=f"{number:032x}")[0] for number in range(100)]
    assert sum(map(limit.filter, rare)) == LINES_PER_MESSAGE


def test_strangers_fill_less_than_100_kb_of_log_in_a_minute() -> None:
    now_ms = 0
    limit = LineLimit(lambda: now_ms)
    written = 0
    for now_ms in range(0, 60_000, 100):
        for number in range(4):
            peer, reason = f"{now_ms}{number}", "x" * 256
            for message in ("member joined", "member left", "member evicted"):
                (record,) = records(1, message, peer=peer, where=reason)
                if limit.filter(record):
                    written += len(LineFormatter().format(record)) + 1
    assert 50_000 < written < 100_000


def test_errors_and_records_about_no_peer_always_pass() -> None:
    limit = LineLimit(lambda: 0)
    assert all(map(limit.filter, records(1000, "round committed")))
    errors = [
        logging.makeLogRecord({"msg": "bug", "peer": "ab12", "levelno": logging.ERROR})
        for _ in range(1000)
    ]
    assert all(map(limit.filter, errors))
