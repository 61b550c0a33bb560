"""The choice of a backend: by device, by size, and by whether the kernels are exact here."""

import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from node.exact import backend, cpu_kernels
from node.exact.accelerator import Accelerator
from node.exact.backend import backend_for
from node.exact.chunks import ChunkLayout
from node.exact.contributions import Contribution
from node.exact.cpu_kernels import CpuKernels
from node.exact.demo.aggregate import apply
from node.exact.demo.momentum import DemoSettings, Momentum
from node.exact.plain import Plain
from tests.node.exact.conftest import kernels_for


def test_a_small_model_does_not_wait_for_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from node.exact.chunks import ChunkLayout\n"
        "from node.exact.demo.momentum import DemoSettings, Momentum\n"
        "engine = Momentum(ChunkLayout.from_shapes({'m': (640, 640)}), DemoSettings(), 'cpu')\n"
        "engine.accumulate({'m': torch.ones(640, 640)})\n"
        "engine.extract()\n"
        "assert 'numba' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture
def _loaded_anew() -> Iterator[None]:
    cpu_kernels.exact_kernels.cache_clear()
    yield
    cpu_kernels.exact_kernels.cache_clear()


SMALL = ChunkLayout.from_shapes({"m": (640, 640)})
LARGE = ChunkLayout.from_shapes({"m": (64 * 64, 64 * 32)})
CPU = torch.device("cpu")


@pytest.mark.usefixtures("_loaded_anew")
def test_without_a_compiler_every_model_goes_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "node.exact.kernels.compiled", None)
    assert isinstance(backend_for(LARGE, CPU), Plain)


@pytest.mark.usefixtures("_loaded_anew")
def test_a_large_model_gets_kernels_and_a_small_one_does_not() -> None:
    assert isinstance(backend_for(SMALL, CPU), Plain)
    kernels_for(SMALL)  # skips where there are none
    assert isinstance(backend_for(LARGE, CPU), CpuKernels)


def test_a_device_other_than_the_cpu_gets_few_large_operations() -> None:
    assert isinstance(backend_for(SMALL, torch.device("meta")), Accelerator)


@pytest.mark.usefixtures("_loaded_anew")
@pytest.mark.parametrize("off", [0, 1])
def test_kernels_that_are_off_by_one_bit_or_fail_are_not_chosen(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, off: int
) -> None:
    kernels_for(SMALL)  # skips where there are none
    kernels = cpu_kernels.import_module("node.exact.kernels.compiled")
    plain = kernels.update

    def update(parameter: np.ndarray, place: tuple[int, ...], *others: object) -> None:
        if not off:
            raise RuntimeError("no such instruction")
        plain(parameter, place, *others)
        parameter[0, 0] = np.nextafter(parameter[0, 0], np.float32(9))

    monkeypatch.setattr(kernels, "update", update)
    cpu_kernels.exact_kernels.cache_clear()
    assert isinstance(backend_for(LARGE, CPU), Plain)
    assert "the engine works without, more slowly" in caplog.text


def test_the_first_step_of_an_engine_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling is over before a node says that it is ready: a round would be too late for it."""
    event = pytest.importorskip("numba.core.event")
    monkeypatch.setattr(backend, "KERNEL_CHUNKS_MIN", 1)
    layout = ChunkLayout.from_shapes({"m": (130, 120), "b": (120,)})
    engine = Momentum(layout, DemoSettings(top_k=8), torch.device("cpu"))
    committed = {"m": torch.zeros(130, 120), "b": torch.zeros(120)}
    with event.install_recorder("numba:compile") as recorder:
        for _ in range(2):
            gradients = {name: torch.randn(view.shape) for name, view in committed.items()}
            engine.accumulate(gradients)
            extraction = engine.extract()
            sent = [Contribution(1, extraction.coefficients)]
            apply(layout, committed, sent, 0.5, 1.0, backend=backend_for(layout, CPU))
            engine.put_back(extraction)
    assert recorder.buffer == []
