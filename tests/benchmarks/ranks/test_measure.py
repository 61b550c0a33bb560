import pytest

from tests.benchmarks.ranks.__main__ import in_a_process


@pytest.mark.slow
def test_memory_and_time_are_told_for_each_rank() -> None:
    one, two = (in_a_process(ranks, 2, "1M") for ranks in (1, 2))
    assert (one["ranks"], two["ranks"]) == (1, 2)
    assert one["parameters"] == two["parameters"] > 800_000
    assert [len(each["memory_bytes"]) for each in (one, two)] == [1, 2]
    assert all(10**8 < taken < 10**10 for taken in [*one["memory_bytes"], *two["memory_bytes"]])
    assert one["samples_per_s"] > 0 < two["samples_per_s"]
