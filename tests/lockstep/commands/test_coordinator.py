"""A coordinator says at its start who can reach it."""

import pytest

from lockstep.commands.coordinator import invitation


@pytest.mark.parametrize("address", ["127.0.0.1:50700", "localhost:50700", "[::1]:50700"])
def test_on_loopback_it_says_that_only_this_machine_can_reach_it(address: str) -> None:
    line = invitation(address)
    assert line.startswith("only this machine can reach this run")
    assert "--listen 0.0.0.0:50700" in line


@pytest.mark.parametrize("address", ["0.0.0.0:50700", "[::]:50700"])
def test_on_every_interface_it_prints_the_line_for_volunteers_with_its_own_address(
    address: str,
) -> None:
    line = invitation(address)
    assert line.startswith("volunteers join with: lockstep join ")
    assert "0.0.0.0" not in line
    assert ":50700" in line


def test_a_name_is_given_to_volunteers_as_it_is() -> None:
    assert invitation("run.example:50700") == (
        "volunteers join with: lockstep join run.example:50700"
    )
