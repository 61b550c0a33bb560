"""The memory that torch hands out on a CPU, by its own profile."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def peak_allocated_bytes(work: Callable[[], object]) -> int:
    """Most bytes of tensors during `work` above those that were there before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        work()
    assert seen.profiler is not None
    events = [each for each in seen.profiler.kineto_results.events() if each.name() == "[memory]"]
    held = peak = 0
    for event in sorted(events, key=lambda each: each.start_ns()):
        held += event.nbytes()  # less than nothing where memory is given back
        peak = max(peak, held)
    return peak
