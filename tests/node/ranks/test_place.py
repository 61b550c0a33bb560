import pytest

from node.ranks.place import RankPlace, environment_of, place_of
from protocol.errors import SettingsError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
    "TORCHELASTIC_RESTART_COUNT": "2",
}


def test_a_process_of_torchrun_is_a_rank() -> None:
    place = place_of(TORCHRUN)
    assert place == RankPlace(5, 8, 1, 4, "10.0.0.1", 29500, has_store=True, attempt="2")
    assert place.is_launched


def test_any_other_process_is_alone() -> None:
    assert place_of({}) == place_of({"RANK": "0", "WORLD_SIZE": "2"}) == RankPlace()
    assert not place_of(TORCHRUN | {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"} | ALONE).rank


ALONE = {"LOCAL_WORLD_SIZE": "1"}


def test_a_rank_that_another_one_starts_finds_its_place() -> None:
    place = RankPlace(2, 3, 2, 3, "127.0.0.1", 4000)
    assert place_of(environment_of(place)) == place


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("RANK", "8"),
        ("RANK", "-1"),
        ("WORLD_SIZE", "0"),
        ("WORLD_SIZE", "1025"),
        ("WORLD_SIZE", "many"),
        ("LOCAL_RANK", "8"),
        ("LOCAL_WORLD_SIZE", "9"),
        ("MASTER_PORT", "0"),
        ("MASTER_PORT", "9" * 30),
    ],
)
def test_a_number_out_of_bounds_is_named(name: str, found: str) -> None:
    with pytest.raises(SettingsError, match=rf"^{name}: expected \d+ to \d+, found '{found}'"):
        place_of(TORCHRUN | {name: found})
