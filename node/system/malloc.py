"""Memory for parts and strips without a trip to the kernel for each.

A part of a payload lives for milliseconds in a handful of blocks of half a megabyte, a strip of
chunks in a few of two. glibc begins by asking the kernel for every block of 128 KB or more and
giving it back when it is free, and each of its pages is cleared and faulted in anew: that was two
fifths of the processor time of a link, and doubled the time of a step of the engine. It raises the
bound by itself when larger blocks are freed, which happens early in some processes and never in
others. This says from the start where that ends."""

import ctypes

MMAP_BYTES = 32 * 1024 * 1024
"""Blocks from this size on come from the kernel one by one: the most that glibc would come to by
itself."""

KEPT_BYTES = 2 * MMAP_BYTES
"""Free memory at the end of the heap that the process keeps; by itself, too, glibc comes to twice
the bound."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory() -> bool:
    """Let this process keep what parts and strips leave behind; False, and nothing changes, where
    the C library is not glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    return bool(mallopt(_MMAP_THRESHOLD, MMAP_BYTES) and mallopt(_TRIM_THRESHOLD, KEPT_BYTES))
