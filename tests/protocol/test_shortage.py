"""Shortages: told from other errors, and outlasted with pauses that grow and one word."""

import errno
import os

import pytest

from protocol.errors import ShortageError, StorageError
from protocol.shortage import FIRST_PAUSE_S, LONGEST_PAUSE_S, Patience, shortages


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS])
def test_a_passing_lack_is_a_shortage_and_never_a_broken_disk(code: int) -> None:
    with (
        pytest.raises(ShortageError, match=f"cannot open it: {os.strerror(code)}") as caught,
        shortages("open it"),
    ):
        raise OSError(code, os.strerror(code))
    assert not isinstance(caught.value, StorageError)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(OSError, match="full") as caught, shortages("open it"):
        raise OSError(errno.ENOSPC, "full")
    assert caught.value.errno == errno.ENOSPC


class Short:
    """Work that fails for some times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self) -> str:
        self.times -= 1
        if self.times >= 0:
            raise ShortageError("none left")
        return "done"


def test_pauses_grow_to_a_longest_one_and_there_is_one_word() -> None:
    pauses, said = list[float](), list[str]()
    patience = Patience(pauses.append, said.append)
    assert patience.outlast(Short(9)) == "done"
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses == sorted(pauses)
    assert pauses[-1] == LONGEST_PAUSE_S
    assert said == ["none left"]


def test_work_that_comes_while_other_work_waits_adds_no_word() -> None:
    said, others = list[str](), [Short(2), Short(1)]

    def sleep(_: float) -> None:
        if others:
            assert patience.outlast(others.pop()) == "done"

    patience = Patience(sleep, said.append)
    assert patience.outlast(Short(3)) == "done"
    assert said == ["none left"]
    patience.outlast(Short(1))
    assert said == ["none left"] * 2  # a new shortage


def test_another_error_ends_the_waiting() -> None:
    def fail() -> None:
        raise StorageError("broken") if pauses else ShortageError("none left")

    pauses, said = list[float](), list[str]()
    patience = Patience(pauses.append, said.append)
    with pytest.raises(StorageError, match="broken"):
        patience.outlast(fail)
    patience.outlast(Short(1))
    assert len(said) == 2
