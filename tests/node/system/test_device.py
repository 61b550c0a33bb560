"""The memory of this machine that nobody uses, and devices that fail."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from node.system import device as module
from node.system.device import (
    choose_device,
    crowded,
    device_errors,
    device_failure,
    free_memory_bytes,
)
from protocol.errors import DeviceError, SettingsError

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


ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the "
    "stacktrace below might be incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1"
)
"""Lines that torch puts below the words of a device."""


def on_a_gpu(words: str) -> RuntimeError:
    return torch.AcceleratorError(words + ADVICE)


@pytest.mark.parametrize(
    "error",
    [
        on_a_gpu("CUDA error: unknown error"),
        on_a_gpu("CUDA error: unspecified launch failure"),
        on_a_gpu("CUDA error: uncorrectable ECC error encountered"),
        on_a_gpu("CUDA error: an illegal memory access was encountered"),
        on_a_gpu("HIP error: the operation cannot be performed in the present state"),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
        torch.OutOfMemoryError("HIP out of memory. Tried to allocate 20.00 MiB. GPU 0 has"),
        RuntimeError("MPS backend out of memory (MPS allocated: 1.17 GB)"),
        RuntimeError("CUDA driver error: unknown error"),
        RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment"),
        RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasSgemm(...)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR"),
        RuntimeError("miopenStatusUnknownError"),
        RuntimeError("No CUDA GPUs are available"),
        RuntimeError("Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions"),
    ],
)
def test_a_device_that_fails_is_told_in_one_line_of_torch_s_words(error: RuntimeError) -> None:
    assert device_failure(error) == str(error).partition("\n")[0]
    with pytest.raises(DeviceError, match=r"^the device failed: \S.*[^\n]$"), device_errors():
        raise error


def shapes_that_do_not_fit() -> None:
    torch.ones(2, 3) @ torch.ones(2, 3)


def indices_out_of_range() -> None:
    torch.nn.functional.embedding(torch.tensor([9]), torch.ones(2, 3))


def a_device_that_this_torch_is_not_built_for() -> None:
    torch.zeros(1).to("xpu" if not torch.xpu.is_available() else "hpu")


def told(error: Exception) -> None:
    raise error


def raised(fails: Callable[[], None]) -> Exception:
    try:
        fails()
    except Exception as error:
        return error
    raise AssertionError("expected an error")


@pytest.mark.parametrize(
    "fails",
    [
        shapes_that_do_not_fit,
        indices_out_of_range,
        a_device_that_this_torch_is_not_built_for,
        lambda: told(RuntimeError("could not open the file CUDA error: unknown error")),
        lambda: told(on_a_gpu("CUDA error: device-side assert triggered")),
        lambda: told(on_a_gpu("CUDA error: invalid configuration argument")),
        lambda: told(on_a_gpu("CUDA error: no kernel image is available for execution on it")),
        lambda: told(RuntimeError("CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `c(...)`")),
        lambda: told(RuntimeError("cuDNN error: CUDNN_STATUS_NOT_SUPPORTED")),
        lambda: told(RuntimeError("Triton Error [CUDA]: device kernel image is invalid")),
        lambda: told(ValueError("CUDA error: unknown error")),
    ],
)
def test_an_error_of_a_model_or_of_a_program_stays_what_it_is(fails: Callable[[], None]) -> None:
    assert device_failure(raised(fails)) == ""


def test_other_errors_pass_through() -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"), device_errors():
        shapes_that_do_not_fit()


@pytest.mark.parametrize(
    ("own", "free", "share", "is_crowded"),
    [(2, 1, 1.0, True), (2, 6, 1.0, False), (7, 1, 1.0, False), (2, 1, 0.5, False)],
)
def test_a_gpu_is_crowded_where_others_hold_more_than_this_process(
    monkeypatch: pytest.MonkeyPatch, own: int, free: int, share: float, is_crowded: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free, 10))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: own)
    monkeypatch.setattr(module, "memory_share", lambda _: share)
    assert crowded(torch.device("cuda")) == is_crowded
    assert not crowded(CPU)


def test_a_gpu_that_is_gone_is_a_failure_and_one_that_torch_cannot_use_a_wrong_setting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.version, "hip", None)
    for built_for, kind in (("12.8", DeviceError), (None, SettingsError)):
        monkeypatch.setattr(torch.version, "cuda", built_for)
        with pytest.raises(kind, match="cuda asked for"):
            choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(SettingsError, match="cuda:1 asked for, found 1 CUDA devices"):
        choose_device("cuda:1")
