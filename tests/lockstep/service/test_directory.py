"""A directory belongs to one process, of one role, of one run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.service.directory import (
    Owner,
    claimed,
    owner_of,
    pid_at_work,
    require_writable,
)
from protocol.errors import SettingsError, StorageError

NODE = Owner("node", "a" * 32, "first")


def test_a_new_directory_is_its_owner_s_alone_and_an_earlier_one_stays_as_it_is(
    tmp_path: Path,
) -> None:
    (earlier := tmp_path / "earlier").mkdir(0o750)
    for directory, mode in ((tmp_path / "new", 0o700), (earlier, 0o750)):
        with claimed(directory, NODE):
            assert directory.stat().st_mode & 0o777 == mode


def test_a_second_process_is_refused_with_the_id_of_the_first(tmp_path: Path) -> None:
    with (
        claimed(tmp_path, NODE),
        pytest.raises(StorageError, match=rf"another process \({os.getpid()}\) is at work"),
        claimed(tmp_path, NODE),
    ):
        pytest.fail("two processes in one directory")
    with claimed(tmp_path, NODE):
        assert pid_at_work(tmp_path) == os.getpid()
    assert pid_at_work(tmp_path) is None


def test_a_place_where_no_directory_can_be_made_is_told_with_what_to_do(tmp_path: Path) -> None:
    (taken := tmp_path / "taken").touch()
    for place in (taken, taken / "below", Path("/proc/no/place")):
        if not place.is_relative_to(tmp_path) and not Path("/proc/self").exists():
            continue
        with pytest.raises(StorageError, match=r"; let this account write there, or name another"):
            require_writable(place)
        with pytest.raises(StorageError, match=str(place)), claimed(place, NODE):
            pytest.fail("a process without a directory")
    require_writable(tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == [taken], "nothing is made to find out"


def test_the_lock_ends_with_a_process_that_was_killed(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; "
        "from lockstep.service.directory import Owner, claimed\n"
        "with claimed(Path(sys.argv[1]), Owner('node')): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)]).returncode == -9
    with claimed(tmp_path, NODE):
        assert owner_of(tmp_path) == NODE, "the run is noted as soon as it is known"


def test_another_run_is_refused_by_both_names_and_nothing_is_touched(tmp_path: Path) -> None:
    with claimed(tmp_path, NODE):
        pass
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    with (
        pytest.raises(SettingsError) as refused,
        claimed(tmp_path, Owner("node", "b" * 32, "second")),
    ):
        pytest.fail("two runs in one directory")
    for word in ("first", "a" * 32, "second", "b" * 32, "--directory"):
        assert word in str(refused.value)
    after = {path: path.read_bytes() for path in tmp_path.iterdir()}
    assert {path.name for path in after} == {path.name for path in before}
    assert owner_of(tmp_path) == NODE


@pytest.mark.parametrize(
    ("first", "second"), [("coordinator", "node"), ("node", "relay"), ("relay", "coordinator")]
)
def test_one_variable_for_two_roles_is_refused(tmp_path: Path, first: str, second: str) -> None:
    with claimed(tmp_path, Owner(first)):
        pass
    with (
        pytest.raises(SettingsError, match=f"belongs to a {first} .* this {second} a directory"),
        claimed(tmp_path, Owner(second, "a" * 32)),
    ):
        pytest.fail("two roles in one directory")


def test_a_note_that_cannot_be_read_is_an_error_and_no_new_owner(tmp_path: Path) -> None:
    (tmp_path / "owner.json").write_text("{")
    with pytest.raises(StorageError, match="cannot be read"), claimed(tmp_path, NODE):
        pytest.fail("nobody knows whose it is")


def test_a_lock_that_the_disk_refuses_is_said_as_such(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(StorageError, match="lock: File too large"), claimed(tmp_path, NODE):
            raise AssertionError("expected a lock that could not be written to be none")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
