"""Log records: one line, with every field that was given."""

import logging

import pytest

from lockstep.service.logs import LineFormatter, log_to_standard_error


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


def test_debug_decides_what_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_standard_error(debug=False)
    logging.getLogger("lockstep.x").debug("hidden")
    logging.getLogger("lockstep.x").info("shown")
    log_to_standard_error(debug=True)
    logging.getLogger("lockstep.x").debug("visible")
    lines = capsys.readouterr().err.splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["shown", "visible"]
