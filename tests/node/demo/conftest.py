from collections.abc import Iterator

import pytest

from node.demo import cpu_kernels
from node.demo.chunks import ChunkLayout
from node.demo.engine import DemoSettings, Engine


@pytest.fixture(params=["plain", "compiled"])
def either_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is done strip by strip, then again in compiled kernels, by parts of three chunks."""
    if request.param == "plain":
        monkeypatch.setattr(cpu_kernels, "CHUNKS_MIN", 10**9)
    else:
        compiled(monkeypatch)


def compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for a model of any size."""
    if cpu_kernels._kernels() is None:
        pytest.skip("numba is not installed, or not for this numpy or Python")
    monkeypatch.setattr(cpu_kernels, "CHUNKS_MIN", 0)
    monkeypatch.setattr(cpu_kernels, "PART_CHUNKS", 3)


def plain_and_compiled(
    monkeypatch: pytest.MonkeyPatch, layout: ChunkLayout, settings: DemoSettings
) -> Iterator[Engine]:
    """An engine that works strip by strip, and then one with kernels; while each is out, so is everything else."""
    monkeypatch.setattr(cpu_kernels, "CHUNKS_MIN", 10**9)
    yield Engine(layout, settings, "cpu")
    compiled(monkeypatch)
    yield Engine(layout, settings, "cpu")
