"""The memory that torch hands out on a CPU, by its own profile."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_allocated_bytes(work: Callable[[], object]) -> int:
    """Most bytes of tensors during `work` above those that were there before."""
    return allocated(work)[0]


def allocated(work: Callable[[], object]) -> tuple[int, int]:
    """(Most bytes of tensors during `work`, those after it), above those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    events = seen.profiler.kineto_results.events()
    changes = [each for each in events if each.name() == "[memory]"]
    held = peak = 0
    for change in sorted(changes, key=lambda each: each.start_ns()):
        held += change.nbytes()  # less than nothing where memory is given back
        peak = max(peak, held)
    return peak, held
