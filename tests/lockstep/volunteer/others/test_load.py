"""The load of other programs is all load less that of this process and its descendants."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from lockstep.service.overhead import ProcessTree
from lockstep.volunteer.others.load import CpuLoad, gpu_load, is_known

OURS = {7, 8}


class Tree(ProcessTree):
    def pids(self) -> set[int]:
        return OURS


class Proc:
    """A /proc with a count of ticks for the machine and for each process."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def write(self, *, busy: int, idle: int, ours: dict[int, tuple[int, ...]]) -> None:
        # user nice system idle iowait irq softirq steal guest guest_nice
        (self.place / "stat").write_text(f"cpu  {busy} 0 0 {idle} 50 0 0 50 999 0\ncpu0 1\n")
        for pid, ticks in ours.items():
            (self.place / str(pid)).mkdir(exist_ok=True)
            fields = ["S", *["0"] * 10, *map(str, ticks), *["0"] * 5]
            (self.place / str(pid) / "stat").write_text(f"{pid} (a) b) {' '.join(fields)}\n")


def test_a_load_that_is_all_ours_is_none_of_others(tmp_path: Path) -> None:
    proc, load = Proc(tmp_path), CpuLoad(Tree(), tmp_path)
    proc.write(busy=1000, idle=1000, ours={7: (10, 0, 0, 0), 8: (5, 5, 0, 0)})
    assert load.percent() is None, "there is nothing to compare with"
    proc.write(busy=1100, idle=1100, ours={7: (50, 10, 0, 0), 8: (45, 15, 0, 0)})
    assert load.percent() == 0


def test_what_others_use_is_told_in_percent_of_all_cores(tmp_path: Path) -> None:
    proc, load = Proc(tmp_path), CpuLoad(Tree(), tmp_path)
    proc.write(busy=0, idle=0, ours={7: (0, 0, 0, 0)})
    load.percent()
    proc.write(busy=90, idle=110, ours={7: (40, 0, 0, 0)})
    assert load.percent() == 25
    proc.write(busy=190, idle=210, ours={7: (40, 0, 0, 0)})
    assert load.percent() == 50, "each call tells of the time since the one before"


def test_a_child_that_ended_stays_ours_by_its_parent(tmp_path: Path) -> None:
    proc, load = Proc(tmp_path), CpuLoad(Tree(), tmp_path)
    proc.write(busy=0, idle=0, ours={7: (0, 0, 0, 0), 8: (0, 0, 0, 0)})
    load.percent()
    (tmp_path / "8" / "stat").unlink()
    proc.write(busy=100, idle=100, ours={7: (20, 0, 60, 20)})
    assert load.percent() == 0


def test_a_machine_without_proc_tells_nothing(tmp_path: Path) -> None:
    assert CpuLoad(Tree(), tmp_path).percent() is None
    assert not is_known(tmp_path)


def test_this_machine_is_read_as_it_is() -> None:
    load = CpuLoad(ProcessTree())
    load.percent()
    busy = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    subprocess.run([sys.executable, "-c", busy], check=True)
    used = load.percent()
    assert used is not None
    assert 0 <= used <= 100
    assert os.getpid() in ProcessTree().pids()


class NvmlError(Exception):
    pass


class NotFoundError(NvmlError):
    pass


class Nvml:
    """The module pynvml with one process of ours and one of another program, on two GPUs."""

    NVMLError, NVMLError_NotFound = NvmlError, NotFoundError

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetProcessUtilization(self, handle: int, since: int) -> list[Any]:  # noqa: N802
        self.asked.append((handle, since))
        if handle == 1:
            raise self.NVMLError_NotFound
        rows = [(7, 20, 60), (99, 20, 35), (99, 10, 90)]
        return [SimpleNamespace(pid=pid, timeStamp=at, smUtil=used) for pid, at, used in rows]


def test_a_gpu_tells_the_newest_figures_of_others() -> None:
    nvml = Nvml()
    read = gpu_load(Tree(), lambda name: nvml, lambda: "")
    assert (read(), read()) == (35.0, 35.0)
    assert nvml.asked == [(0, 0), (1, 0), (0, 20), (1, 0)], "what was told is not asked for again"


def test_without_nvml_without_a_driver_and_in_a_container_no_gpu_is_judged() -> None:
    def missing(name: str) -> Any:
        raise ImportError(name)

    class NoDriver(Nvml):
        def nvmlInit(self) -> None:  # noqa: N802
            raise self.NVMLError

    assert gpu_load(Tree(), missing, lambda: "")() is None
    assert gpu_load(Tree(), lambda name: NoDriver(), lambda: "")() is None
    assert gpu_load(Tree(), lambda name: Nvml(), lambda: "pid:[4026532001]")() is None
