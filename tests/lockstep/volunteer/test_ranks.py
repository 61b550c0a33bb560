"""A process's part in its node, by environment and devices."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lockstep.volunteer import ranks
from lockstep.volunteer.ranks import crew_of, own_place, shared
from node.ranks.place import RankPlace
from node.settings import NodeSettings
from node.system.device import device_of_rank
from protocol.errors import SettingsError
from tests.support.tiny import tiny_spec

SETTINGS = NodeSettings("127.0.0.1:1", Path("."))
TORCHRUN = RankPlace(1, 4, 1, 2, "10.0.0.1", 29500)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("TORCH_CPP_LOG_LEVEL", "ERROR")


def test_each_device_of_a_list_has_a_rank() -> None:
    assert shared(replace(SETTINGS, device="cuda:0,cuda:2"), RankPlace()).ranks == 2
    assert shared(SETTINGS, RankPlace()) == SETTINGS


def test_all_devices_are_those_that_torch_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    everything = replace(SETTINGS, device="all")
    assert shared(everything, RankPlace()).ranks == 1, "the CPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    assert shared(everything, RankPlace()).ranks == 3


def test_ranks_on_the_cpus_of_one_machine_share_its_threads() -> None:
    found = shared(replace(SETTINGS, device="cpu,cpu,cpu"), RankPlace())
    assert (found.ranks, found.threads) == (3, 2)
    found = shared(replace(SETTINGS, device="cpu"), TORCHRUN)
    assert (found.ranks, found.threads) == (4, 4), "two of the four are on this machine"
    found = shared(replace(SETTINGS, device="cpu,cpu", threads=3), RankPlace())
    assert found.threads == 3, "as its owner chose"


def test_a_node_of_one_rank_has_no_crew() -> None:
    with crew_of(SETTINGS, tiny_spec(), RankPlace()) as crew:
        assert crew is None


def test_the_environment_of_torchrun_tells_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    assert own_place() == RankPlace()
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "h"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert own_place() == RankPlace(1, 2, 1, 2, "h", 29500)
    monkeypatch.setenv("RANK", "2")
    with pytest.raises(SettingsError, match=r"^RANK: expected 0 to 1, found '2'"):
        own_place()


def test_a_rank_takes_the_device_at_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert device_of_rank("auto", 1) == device_of_rank("cpu", 5) == cpu
    assert device_of_rank("cpu,cpu", 1) == cpu
    with pytest.raises(SettingsError, match="one for each rank of a machine, found 'cpu,cpu'"):
        device_of_rank("cpu,cpu", 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert device_of_rank("auto", 1) == device_of_rank("all", 1) == torch.device("cuda", 1)
    assert device_of_rank("cuda:1,cuda:0", 1) == torch.device("cuda", 0)
    with pytest.raises(SettingsError, match="cuda:2 asked for, found 2"):
        device_of_rank("cuda", 2)
    with pytest.raises(SettingsError, match="one for each rank"):
        device_of_rank("cuda:1", 1)


def test_a_rank_without_a_device_says_so_to_rank_0() -> None:
    hello, _ = ranks._hello(replace(SETTINGS, device="cpu,cpu"), replace_rank(2))
    assert hello.error.startswith("device: expected one for each rank")
    assert hello.kind == ""
    hello, device = ranks._hello(
        replace(SETTINGS, device="cpu", data_url="s3://d"), replace_rank(1)
    )
    assert (hello.error, hello.kind, device) == ("", "cpu", torch.device("cpu"))
    assert hello.settings == {"coordinator": "127.0.0.1:1", "data": "", "data_url": "s3://d"}
    with pytest.raises(SettingsError, match="one for each rank"):
        ranks._hello(replace(SETTINGS, device="cuda:1"), RankPlace(0, 4, 1, 2, "h", 1))


def replace_rank(local_rank: int) -> RankPlace:
    return RankPlace(local_rank, 4, local_rank, 4, "h", 1)
