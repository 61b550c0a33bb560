"""One identity above a directory for each run: no run touches another one's."""

from pathlib import Path

import pytest
import torch

from lockstep.service.home import Home, Remembered
from lockstep.service.keys import load_or_create_key
from node.control.first_contact import remember
from node.replica.state_file import save_tensors
from protocol.errors import StorageError
from protocol.ids import RunId

FIRST, SECOND = RunId("a" * 32), RunId("b" * 32)


def key_bytes(directory: Path) -> bytes:
    return load_or_create_key(directory).public_key().public_bytes_raw()


def test_each_run_has_a_directory_and_all_have_one_identity(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.run(FIRST) != home.run(SECOND)
    for run in (FIRST, SECOND):
        home.run(run).mkdir(parents=True)
    assert home.runs == [home.run(FIRST), home.run(SECOND)]
    remember(home.run(SECOND), "example:50700")
    assert home.knows("example:50700")
    assert not home.knows("example:50701")


def test_a_key_that_is_gone_is_told_from_one_that_never_was(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.run(FIRST).mkdir(parents=True)
    assert not home.lost_key, "nothing has worked here yet"
    load_or_create_key(tmp_path)
    save_tensors(home.run(FIRST) / "state.safetensors", {"one": torch.ones(1)}, {})
    assert not home.lost_key
    (tmp_path / "key.pem").unlink()
    assert home.lost_key
    assert Home(home.run(FIRST), only=True).lost_key


def test_an_explicit_directory_is_all_there_is(tmp_path: Path) -> None:
    home = Home(tmp_path, only=True)
    assert home.run(FIRST) == tmp_path
    assert home.runs == [tmp_path]


def test_the_name_is_remembered_over_runs(tmp_path: Path) -> None:
    assert Home(tmp_path).remembered() == Remembered()
    Home(tmp_path).remember(Remembered("attic"))
    assert Home(tmp_path).remembered().name == "attic"
    (tmp_path / "settings.json").write_text("{")
    with pytest.raises(StorageError, match="remove it"):
        Home(tmp_path).remembered()
