"""Promises of the allocator's settings, each in a process of its own: they last as long as it
does.
"""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

PART_BYTES, PARTS = 512 * 1024, 200

FAULTS = f"""
import resource, sys
from node.system.malloc import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
def pass_on():
    for _ in range({PARTS}):
        one = bytes({PART_BYTES}); other = b"".join((b"head", one)); del one, other
pass_on()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
pass_on()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> int:
    """Pages that the kernel had to provide while parts came and went."""
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_parts_that_come_and_go_take_no_new_pages_from_the_kernel() -> None:
    assert faults("kept") < PARTS
    assert faults("as it is") > 10 * PARTS, "glibc has changed: the module may go"


FREED = f"""
from pathlib import Path
from border.memory import give_back_freed_memory
from node.system.malloc import keep_freed_memory
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
keep_freed_memory()
held = [bytes([1]) * {PART_BYTES} for _ in range({PARTS})]
last = bytes([1]) * {PART_BYTES}
del held
before = resident()
assert give_back_freed_memory()
print(before - resident())
"""

SHARED = f"""
import threading
from pathlib import Path
from node.system.malloc import keep_freed_memory
keep_freed_memory()
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
def work():
    held = [bytes([1]) * {PART_BYTES} for _ in range({PARTS} // 2)]
    last.append(bytes([1]) * {PART_BYTES})  # keeps the end of the arena
    del held
    turn.wait()
last, turn = [], threading.Barrier(5)
def begun():
    thread = threading.Thread(target=work); thread.start()
    return thread
before = resident()
threads = []
for number in range(4):
    threads.append(begun())
    while len(last) <= number or turn.n_waiting <= number: pass
print((resident() - before) // {PART_BYTES})
turn.wait()
"""

WEIGHTS_BYTES = 8 * 1024 * 1024

WEIGHTS = f"""
import sys
from pathlib import Path
from node.system.malloc import keep_freed_memory, keep_weights_apart
def resident(): return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
keep_freed_memory()
if sys.argv[1] == "apart":
    assert keep_weights_apart()
stay = []
before = resident()
for _ in range(20):
    gathered = [bytes([1]) * {WEIGHTS_BYTES}, bytes([1]) * {WEIGHTS_BYTES}]
    del gathered
    stay.append(bytes([1]) * {PART_BYTES})
print((resident() - before) // {PART_BYTES})
"""

LARGE_PAGES = """
from pathlib import Path
from node.system.malloc import keep_freed_memory
keep_freed_memory()
import torch
held = torch.ones(2**22)
flags = [line.split() for line in Path("/proc/self/smaps").read_text().splitlines()]
print(sum("hg" in each for each in flags if each[0] == "VmFlags:"))
"""


def told(code: str, *arguments: str) -> int:
    command = [sys.executable, "-c", code, *arguments]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_weights_that_come_and_go_leave_no_room_behind() -> None:
    assert told(WEIGHTS, "apart") < 25, "twenty stay"
    assert told(WEIGHTS, "as it is") > 40, "glibc has changed: the bound may go"


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_what_is_freed_goes_back_where_that_is_asked_for() -> None:
    assert told(FREED) > PARTS * PART_BYTES * 0.9


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the C library is not glibc")
def test_one_thread_uses_what_another_has_freed() -> None:
    assert told(SHARED) < PARTS, "four threads with half of the parts each, one after the other"


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="the kernel has one size"
)
def test_torch_asks_for_large_pages() -> None:
    assert told(LARGE_PAGES) > 0


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from border import memory
    from node.system import malloc

    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert not malloc.keep_freed_memory()
    assert not malloc.keep_weights_apart()
    assert not memory.give_back_freed_memory()
