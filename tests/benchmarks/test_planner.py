"""The planner is as near to the measurements as its page says."""

from protocol.planner.links import MEASURED
from tests.benchmarks.planner import (
    AIM,
    FITTED,
    PAGE,
    cells,
    exchange_cells,
    fit,
    mean_error,
    page,
)


def test_the_calibration_is_that_of_two_cells() -> None:
    assert fit() == MEASURED
    assert sum(cell.fitted for cell in cells()) == len(FITTED) == 2


def test_cells_that_were_not_fitted_are_within_the_aim() -> None:
    found = cells()
    assert sum(not cell.fitted for cell in found) >= 12
    assert mean_error(found) <= AIM
    assert mean_error(exchange_cells()) <= AIM


def test_the_page_has_the_current_tables() -> None:
    assert page(PAGE.read_text()) == PAGE.read_text()
