"""The file of home links: what it says, and what it says when it is wrong."""

from pathlib import Path

import pytest

from lockstep.wan.profiles import BUILTIN, cycled, read_profiles
from protocol.errors import SettingsError

GOOD = """
[profiles.tin-can]
down_mbit_s = 0.1
up_mbit_s = 0.1
rtt_ms = 4
jitter_ms = 9
loss_percent = 10
"""


def read(tmp_path: Path, text: str) -> str:
    path = tmp_path / "profiles.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        read_profiles(path)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "down", "up", "rtt", "jitter", "loss"),
    [
        ("dsl-poor", 2, 0.4, 70, 10, 2),
        ("dsl", 16, 2, 40, 5, 0.5),
        ("cable", 220, 20, 25, 4, 0.1),
        ("fibre", 300, 300, 10, 1, 0),
        ("lte", 30, 8, 70, 15, 0.5),
        ("5g-fixed", 150, 18, 55, 15, 0.3),
        ("starlink", 118, 17, 45, 7, 1),
    ],
)
def test_the_builtin_profiles_have_the_figures_of_real_lines(
    name: str, down: float, up: float, rtt: float, jitter: float, loss: float
) -> None:
    link = read_profiles().profile(name).link()
    assert link.up is not None
    assert link.down is not None
    assert (link.down.rate_bit_s, link.up.rate_bit_s) == (down * 1e6, up * 1e6)
    assert link.rtt_s == pytest.approx(rtt / 1000)
    assert link.up.jitter_s + link.down.jitter_s == pytest.approx(jitter / 1000)
    assert link.up.loss == link.down.loss == loss / 100


def test_there_is_one_file_under_two_names() -> None:
    deployed = Path(__file__).parents[3] / "deploy" / "wan" / "profiles.toml"
    assert deployed.resolve() == BUILTIN.resolve()


def test_a_distance_is_the_same_in_both_directions() -> None:
    catalogue = read_profiles()
    assert (
        catalogue.one_way_s("virginia", "london")
        == catalogue.one_way_s("london", "virginia")
        == 0.038
    )


def test_a_pair_that_nobody_measured_is_an_error_that_lists_those_that_are() -> None:
    with pytest.raises(
        SettingsError,
        match=r"between london and tokyo is known, only of virginia-london, .*california-tokyo",
    ):
        read_profiles().one_way_s("london", "tokyo")


def test_an_unknown_profile_is_an_error_that_lists_the_known_ones() -> None:
    with pytest.raises(
        SettingsError, match=r"expected one of dsl-poor, dsl, .*starlink, found 'adsl'"
    ):
        read_profiles().profile("adsl")


def test_jitter_never_makes_a_packet_arrive_before_it_left(tmp_path: Path) -> None:
    path = tmp_path / "profiles.toml"
    path.write_text(GOOD)
    up = read_profiles(path).profile("tin-can").link().up
    assert up is not None
    assert up.jitter_s == up.delay_s == 0.002


def test_every_wrong_field_is_named_with_what_was_found(tmp_path: Path) -> None:
    text = read(
        tmp_path,
        GOOD.replace("up_mbit_s = 0.1", "up_mbit_s = 0").replace("rtt_ms = 4", 'rtt_ms = "long"'),
    )
    assert "profiles.tin-can.up_mbit_s: expected greater than 0, found 0" in text
    assert "profiles.tin-can.rtt_ms" in text
    assert "'long'" in text


def test_an_unknown_field_is_named(tmp_path: Path) -> None:
    assert "profiles.tin-can.colour" in read(tmp_path, GOOD + 'colour = "red"\n')


def test_a_missing_file_and_one_that_is_no_toml_are_errors_with_the_reason(tmp_path: Path) -> None:
    assert "not valid TOML" in read(tmp_path, "[profiles")
    with pytest.raises(SettingsError, match="cannot read"):
        read_profiles(tmp_path / "none.toml")


def test_names_are_taken_in_turn() -> None:
    assert cycled(("a", "b", "c"), 5) == ("a", "b", "c", "a", "b")
