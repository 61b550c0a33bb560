from collections.abc import Callable

import pytest
import torch

from node.exact import cpu_kernels, engine
from node.exact.accelerator import Accelerator
from node.exact.backend import Backend
from node.exact.chunks import ChunkLayout
from node.exact.cpu_kernels import CpuKernels
from node.exact.demo import aggregate
from node.exact.local_steps import residual
from node.exact.plain import Plain

MakeBackend = Callable[[ChunkLayout], Backend]

CPU = torch.device("cpu")


def kernels_for(layout: ChunkLayout) -> CpuKernels:
    """Compiled kernels for a model of any size."""
    kernels = cpu_kernels.exact_kernels()
    if kernels is None:
        pytest.skip("numba is not installed, or not for this numpy or Python")
    return CpuKernels(layout, kernels)


BACKENDS: dict[str, MakeBackend] = {
    "plain": Plain,
    "accelerator": lambda layout: Accelerator(layout, CPU),
    "compiled": kernels_for,
}
"""Every backend, on the CPU and for a model of any size."""

by_backend = pytest.mark.parametrize("make_backend", BACKENDS.values(), ids=BACKENDS)
but_plain = pytest.mark.parametrize(
    "make_backend", [BACKENDS["accelerator"], BACKENDS["compiled"]], ids=["accelerator", "compiled"]
)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads take three chunks at a time, and a residual is worked on by five, so that small
    models have many parts.
    """
    monkeypatch.setattr(cpu_kernels, "PART_CHUNKS", 3)
    monkeypatch.setattr(residual, "HOST_STRIP_CHUNKS", 5)


@pytest.fixture(params=BACKENDS)
def each_backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backend in turn is the one that engines and steps choose."""
    use_backend(monkeypatch, BACKENDS[request.param])


def use_backend(monkeypatch: pytest.MonkeyPatch, make_backend: MakeBackend) -> None:
    """Have engines and steps choose this backend from now on."""
    for module in (aggregate, engine):
        monkeypatch.setattr(module, "backend_for", lambda layout, device: make_backend(layout))
