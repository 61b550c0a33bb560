"""A GPU is named as what it is, and one that is not used is told of with the reason."""

from pathlib import Path

import pytest
import torch

from node.settings import NodeSettings
from node.system import device as module
from node.system.device import choose_devices, describe, free_memory_bytes, limit_memory
from node.system.hardware import Facts, gpu_name, unused
from protocol.errors import SettingsError

CPU = torch.device("cpu")
CARD = torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (Facts(cuda="12.8", gpus=1), "a card"),
        (Facts(hip="6.2.41133-dd7f95766", gpus=1), "a card (ROCm 6.2)"),
        (Facts(hip="unknown", gpus=1), "a card (ROCm)"),
    ],
)
def test_rocm_is_named_although_torch_calls_it_cuda(
    monkeypatch: pytest.MonkeyPatch, facts: Facts, name: str
) -> None:
    assert gpu_name("a card", facts) == name
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a card")
    monkeypatch.setattr(module, "facts", lambda: facts)
    assert describe(CARD) == name
    assert describe(CARD, torch.device("cuda", 1)) == f"2 x {name}"


def test_what_torch_was_built_for_is_read_from_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "6.2.1")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    found = module.facts()
    assert (found.hip, found.cuda, found.gpus, found.mps) == ("6.2.1", "", 2, False)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (Facts(), ""),
        (Facts(cuda="12.8", gpus=1, nvidia=True), ""),
        (Facts(mps=True), "MPS lacks float64"),
        (Facts(nvidia=True), "this torch is built for CPUs; install the build of torch for CUDA"),
        (Facts(cuda="12.8", amd=True), "built for CUDA; install the build of torch for ROCm"),
        (Facts(cuda="12.8", nvidia=True), "torch finds no GPU of CUDA; see that this user"),
    ],
)
def test_a_gpu_that_is_not_used_is_told_of_with_a_remedy(facts: Facts, words: str) -> None:
    said = unused(facts)
    assert words in said
    assert bool(said) == bool(words)


def test_mps_is_refused_with_one_sentence_and_a_mac_trains_on_its_cpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(SettingsError, match=r"MPS lacks float64.*leave --device out"):
        NodeSettings("host:1", module.Path("x"), device="mps")
    with pytest.raises(SettingsError, match="MPS lacks float64"):
        choose_devices("mps")
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_devices("auto") == choose_devices("all") == (CPU,)


class Card:
    """A GPU of 10 GB with 9 GB free, of which this process has reserved 1 GB."""

    total_memory = 10_000


@pytest.fixture
def set_shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    shares: list[float] = []
    monkeypatch.setattr(module, "_shares", {})
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: Card)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (9_000, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 1_000)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, device: shares.append(share)
    )
    return shares


def test_a_share_of_the_memory_bounds_what_is_taken_and_what_is_seen_as_free(
    set_shares: list[float],
) -> None:
    limit_memory(CARD, 100)
    assert set_shares == [], "without a limit torch is left as it is"
    assert free_memory_bytes(CARD) == 9_000
    limit_memory(CARD, 40)
    assert (free_memory_bytes(CARD), module.gpu_memory_bytes(CARD)) == (3_000, 4_000)
    limit_memory(CARD, 100)
    assert set_shares == [0.4, 1.0]
    assert free_memory_bytes(CARD) == 9_000


def test_a_share_of_a_gpu_s_memory_is_refused_where_there_is_no_gpu(
    set_shares: list[float],
) -> None:
    with pytest.raises(SettingsError, match="expected a GPU of CUDA or ROCm, found cpu"):
        limit_memory(CPU, 50)
    limit_memory(CPU, 100)
    assert set_shares == []


@pytest.mark.parametrize("name", ["duty_cycle", "gpu_memory"])
@pytest.mark.parametrize("value", [0, 101])
def test_a_percentage_outside_its_bounds_is_refused(name: str, value: int) -> None:
    with pytest.raises(SettingsError, match=f"{name}: expected 1 to 100, found {value}"):
        NodeSettings("host:1", module.Path("x"), **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("device", ["cpu,cpu", "all", "cuda:0,cuda:1", "auto", "cuda"])
def test_lists_of_devices_are_settings(device: str) -> None:
    assert NodeSettings("127.0.0.1:1", Path("."), device=device).device == device


@pytest.mark.parametrize("device", ["cpu,", "auto,cpu", "all,cpu", "cuda:0,,cuda:1", "gpu", ""])
def test_other_words_are_not(device: str) -> None:
    with pytest.raises(SettingsError, match="device: expected cpu, cuda, cuda:N, several with"):
        NodeSettings("127.0.0.1:1", Path("."), device=device)


def test_devices_are_chosen_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_devices("cpu,cpu") == (CPU, CPU)
    assert describe(CPU, CPU) == f"2 x {describe(CPU)}"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"card {device.index}")
    both = choose_devices("all")
    assert [str(each) for each in both] == ["cuda:0", "cuda:1"]
    assert describe(*both) == "card 0 + card 1"
    assert choose_devices("cuda:1,cuda:0") == both[::-1]
    with pytest.raises(SettingsError, match="every GPU once"):
        choose_devices("cuda:0,cuda")
    with pytest.raises(SettingsError, match=r"cuda:2 asked for, found 2"):
        choose_devices("cuda:0,cuda:2")
