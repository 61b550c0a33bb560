"""Sets glibc's allocator to keep freed memory, for parts and strips; `border.memory` gives it back.
And has torch take large pages.

A part of a payload lives for milliseconds in a handful of blocks of half a megabyte, a strip of
chunks in a few of two megabytes. At first glibc asks the kernel for every block of 128 KB or more
and returns it when it is free, and each of its pages is cleared and faulted in again: that took two
fifths of the processor time of a link, and doubled the time of a step of the engine. glibc raises
the bound when larger blocks are freed, which happens early in some processes and never in others.
This module sets the bound that it would end with from the start.

glibc also gives threads an arena each, eight for each core, and each keeps what was freed in it. A
node makes its passes in whichever thread of a pool is free: the demo's network took 756 MB after
ten rounds in place of 553, one pass more for each thread that had made one. So all threads share
one arena; where large blocks are asked for, the lock is not what takes the time.

In a pass of a sharded network the weights of one block of the model after the other come and go,
8 MB a matrix, and what stays of each pass is small. It settles where the weights have been, so the
next ones find no room and the heap grows: 355 million parameters took a rank of four 1.9 GB for 0.3
that were in use. There the bound is a lower one.

Torch can ask for pages of 2 MB, of which one takes one fault in place of 512: two ranks took 11.5 s
for a round where they took 13.3, a node alone 8.5 to 9.9 for 9.3 to 10.1.
"""

import ctypes
import os
from collections.abc import Mapping
from pathlib import Path

MMAP_BYTES = 32 * 1024 * 1024
"""Size in bytes from which on blocks come from the kernel one by one: the largest that glibc would
reach by itself."""

KEPT_BYTES = 2 * MMAP_BYTES
"""Free bytes at the end of the heap that the process keeps; glibc, too, would reach twice the
bound."""

MMAP_BYTES_SHARDED = 4 * 1024 * 1024
"""The same where a network is sharded: more than a strip of chunks takes."""

LARGE_PAGES = "THP_MEM_ALLOC_ENABLE"
"""Torch's variable, which it reads as it first takes memory: blocks of 2 MB and more are to lie in
large pages."""

_KERNEL_HAS_THEM = Path("/sys/kernel/mm/transparent_hugepage")

_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep the memory that parts and strips leave, and torch take large pages,
    once: call it before there are other threads, and before torch is imported. False, and nothing
    is kept, where the C library is not glibc.
    """
    if _KERNEL_HAS_THEM.exists():  # else torch would say at each start that they failed
        os.environ.setdefault(LARGE_PAGES, "1")
    wanted = {_MMAP_THRESHOLD: MMAP_BYTES, _TRIM_THRESHOLD: KEPT_BYTES, _ARENA_MAX: 1}
    return _set(wanted)


def keep_weights_apart() -> bool:
    """Have weights that come and go take no memory of the heap, from now on. False, and nothing
    changes, where the C library is not glibc.
    """
    return _set({_MMAP_THRESHOLD: MMAP_BYTES_SHARDED})


def _set(wanted: Mapping[int, int]) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return all(mallopt(option, value) for option, value in wanted.items())
