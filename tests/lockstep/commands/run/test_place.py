"""The coordinator, members and hosts that an operator's words mean."""

from pathlib import Path

import pytest

from lockstep.commands.run.place import any_here, at_work, key_of, target_of
from lockstep.exit_codes import UsageError
from lockstep.service.directory import Owner, claimed
from protocol.errors import SettingsError, UnavailableError

ONE, TWO = "a1b2c3d4" * 4, "a1b2ffff" * 4
MEMBERS = [{"peer_id": ONE, "name": "kitchen"}, {"peer_id": TWO, "name": "cellar"}]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("f" * 32, "f" * 32),
        ("F" * 32, "f" * 32),
        (ONE, ONE),
        ("a1b2c", ONE),
        (" A1B2F ", TWO),
        ("cellar", TWO),
    ],
)
def test_a_node_is_named_by_its_id_its_first_characters_or_its_name(text: str, key: str) -> None:
    assert key_of(text, MEMBERS) == key


@pytest.mark.parametrize(
    ("text", "words"),
    [("a1b2", "names 2"), ("a1b", "32 hexadecimal"), ("attic", "32 hexadecimal"), ("", "members")],
)
def test_a_doubtful_name_is_refused(text: str, words: str) -> None:
    with pytest.raises(SettingsError, match=words):
        key_of(text, MEMBERS)


def test_what_is_no_target_may_have_been_meant_as_an_address() -> None:
    with pytest.raises(SettingsError, match=r"or an IP address, found '999\.1\.1\.1'"):
        target_of("999.1.1.1", MEMBERS)


def test_a_name_of_two_members_is_refused() -> None:
    twins = [{"peer_id": ONE, "name": "node"}, {"peer_id": TWO, "name": "node"}]
    with pytest.raises(SettingsError, match="names 2"):
        key_of("node", twins)


@pytest.mark.parametrize(
    ("text", "host"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3::4", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::/64", "2001:db8:1:2::/64"),
        ("kitchen", ONE),
    ],
)
def test_a_host_is_what_the_coordinator_counts_as_one(text: str, host: str) -> None:
    assert target_of(text, MEMBERS) == host


def test_the_one_coordinator_at_work_here_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnavailableError, match="--directory"):
        at_work(None)
    for name in ("one", "two"):
        (tmp_path / f"{name}.coordinator").mkdir()
    with pytest.raises(UsageError, match="several"):
        any_here(None)
    with claimed(Path("two.coordinator"), Owner("coordinator")):
        assert at_work(None) == Path("two.coordinator")
    assert at_work(tmp_path) == tmp_path
