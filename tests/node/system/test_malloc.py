"""Promises of the allocator's settings, each in a process of its own: they last as long as it
does.
"""

import platform
import subprocess
import sys

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


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    from node.system import malloc

    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: object())
    assert not malloc.keep_freed_memory()
