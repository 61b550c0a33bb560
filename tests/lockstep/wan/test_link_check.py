"""Asked against measured: what may differ, and what is an error."""

from dataclasses import replace

import pytest

from lockstep.wan.link_check import CheckedLink, require_as_asked
from protocol.errors import UnavailableError

GOOD = CheckedLink(
    home="node-0",
    profile="cable",
    region="",
    nat="none",
    mechanism="tbf+delay",
    asked_up_bit_s=20e6,
    measured_up_bit_s=20e6,
    asked_down_bit_s=220e6,
    measured_down_bit_s=220e6,
    asked_rtt_s=0.025,
    measured_rtt_s=0.025,
    asked_loss=0.001,
    measured_loss=0.001,
    packets=1000,
)


def test_a_link_as_asked_is_no_error() -> None:
    require_as_asked([GOOD])


@pytest.mark.parametrize("factor", [0.86, 1.14])
def test_a_deviation_of_fourteen_percent_is_accepted(factor: float) -> None:
    require_as_asked(
        [replace(GOOD, measured_up_bit_s=factor * 20e6, measured_rtt_s=factor * 0.025)]
    )


@pytest.mark.parametrize("factor", [0.84, 1.16])
@pytest.mark.parametrize("field", ["up_bit_s", "down_bit_s", "rtt_s"])
def test_a_deviation_of_sixteen_percent_is_an_error_with_both_figures(
    field: str, factor: float
) -> None:
    off = replace(GOOD, **{f"measured_{field}": factor * getattr(GOOD, f"asked_{field}")})
    with pytest.raises(UnavailableError, match=r"more than 15%.*node-0: .*asked .*, measured "):
        require_as_asked([GOOD, off])


def test_every_figure_that_is_off_is_named() -> None:
    off = replace(
        GOOD, measured_up_bit_s=1.0, measured_down_bit_s=1.0, measured_rtt_s=1.0, measured_loss=0.5
    )
    assert len(off.deviations()) == 4


@pytest.mark.parametrize(
    ("lost", "packets", "wrong"), [(0.003, 1000, 0), (0.006, 1000, 1), (0.003, 100_000, 1)]
)
def test_loss_may_be_off_by_chance_which_is_less_the_more_packets(
    lost: float, packets: int, wrong: int
) -> None:
    assert len(replace(GOOD, measured_loss=lost, packets=packets).deviations()) == wrong


def test_a_lossless_link_that_loses_is_an_error() -> None:
    assert replace(GOOD, asked_loss=0.0, measured_loss=0.002).deviations()
