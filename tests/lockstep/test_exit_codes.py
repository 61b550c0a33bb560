"""Exit codes: every error has one, and every one has a meaning; `tests/docs` holds the page."""

import pytest

from lockstep.exit_codes import MEANINGS, ExitCode, StoppedError, UsageError, error_of, exit_code
from protocol import errors

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and kind is not errors.LockstepError
]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_of_the_project_has_a_code_of_its_own_kind(kind: type[Exception]) -> None:
    expected_bug = kind is errors.LocalProtocolError
    assert (exit_code(kind("why")) is ExitCode.BUG) == expected_bug


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.SettingsError(), 3),
        (errors.UnavailableError(), 4),
        (errors.VersionError(), 5),
        (errors.StorageError(), 6),
        (errors.AddressInUseError(), 7),
        (errors.DataError(), 8),
        (errors.RefusedError(), 9),
        (errors.DivergedError(), 9),
        (errors.DeviceError(), 10),
        (UsageError(), 2),
        (StoppedError(), 130),
        (KeyboardInterrupt(), 130),
        (ZeroDivisionError(), 1),
    ],
)
def test_the_documented_codes_do_not_change(error: BaseException, code: int) -> None:
    assert exit_code(error) == code


def test_a_subclass_ends_like_its_parent() -> None:
    class FullDisk(errors.StorageError):
        pass

    assert exit_code(FullDisk()) is ExitCode.STORAGE


def test_a_child_s_code_leads_back_to_an_error_with_the_same_code() -> None:
    for code in (2, 3, 4, 5, 6, 7, 8, 9, 10):
        assert exit_code(error_of(code)()) == code
    assert error_of(-9) is errors.UnavailableError


def test_every_code_has_a_meaning() -> None:
    assert set(MEANINGS) == set(ExitCode)
