"""Work that is spread over threads is done once for each item, and its errors come back."""

import threading

import pytest

from node.system.threads import spread


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("items", [0, 1, 2, 95])
def test_every_item_is_worked_on_once(threads: int, items: int) -> None:
    done: list[int] = []
    spread(done.append, range(items), threads)
    assert sorted(done) == list(range(items))


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_reaches_the_caller(threads: int) -> None:
    def fail(item: int) -> None:
        raise ValueError(f"no item {item}")

    with pytest.raises(ValueError, match="no item"):
        spread(fail, range(20), threads)


def test_as_many_threads_work_at_once_as_were_asked_for() -> None:
    together = threading.Barrier(3, timeout=60)
    spread(lambda item: together.wait(), range(3), 3)  # breaks unless three wait at the same time
    assert not together.broken


def test_one_item_is_worked_on_by_the_caller() -> None:
    found: list[int] = []
    spread(lambda item: found.append(threading.get_ident()), [0], 8)
    assert found == [threading.get_ident()]
