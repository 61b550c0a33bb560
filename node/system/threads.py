"""One piece of work for many items, by this thread and others.

Only for work that gives up Python's lock for most of its time, as numpy, torch and compiled kernels
do. The others are threads of a pool that stays, since to start one takes longer than most items.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")


def spread(work: Callable[[Item], object], items: Sequence[Item], threads: int) -> None:
    """Have every item worked on, each once, by at most `threads` threads, of which this is one.

    What `work` raises is raised here, the first of several, when all threads are done. `work` must
    not call this function itself: it could wait for a thread that waits for it.
    """
    others = min(threads, len(items)) - 1
    if others < 1:
        for item in items:
            work(item)
        return
    left = iter(list(items))  # of a list: next() of it is one step, so no item comes twice

    def take() -> None:
        for item in left:
            work(item)

    tasks = [_pool(threads - 1).submit(take) for _ in range(others)]
    try:
        take()
    finally:
        wait(tasks)
    for task in tasks:
        task.result()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="spread")
