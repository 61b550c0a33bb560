"""The memory of this machine that nobody uses."""

from pathlib import Path

import pytest
import torch

from node.system import device as module
from node.system.device import free_memory_bytes

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("available", "limit", "free"),
    [
        ("MemTotal: 900 kB\nMemAvailable:   100 kB\n", None, 102_400),
        ("MemAvailable: 100 kB\n", ("max", "5"), 102_400),
        ("MemAvailable: 100 kB\n", ("50000", "20000"), 30_000),
        ("MemAvailable: 100 kB\n", ("50000", "60000"), 0),
        ("MemTotal: 900 kB\n", None, None),
        (None, None, None),
    ],
)
def test_what_machine_and_container_can_still_give(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    available: str | None,
    limit: tuple[str, str] | None,
    free: int | None,
) -> None:
    monkeypatch.setattr(module, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(module, "CGROUP", tmp_path)
    if available is not None:
        (tmp_path / "meminfo").write_text(available)
    for name, text in zip(("max", "current"), limit or (), strict=False):
        (tmp_path / f"memory.{name}").write_text(f"{text}\n")
    assert free_memory_bytes(CPU) == free
