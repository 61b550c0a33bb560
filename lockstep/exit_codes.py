"""Exit codes, for scripts, service managers and shells.

The type of an error says who can mend it (`protocol.errors`); the exit code says the same to a
program. The table below is the only one: `lockstep --help` prints it.
"""

from enum import IntEnum

from protocol.errors import (
    AddressInUseError,
    DataError,
    DeviceError,
    DivergedError,
    EquivocationError,
    LocalProtocolError,
    LockstepError,
    RefusedError,
    RemoteProtocolError,
    SettingsError,
    ShortageError,
    StorageError,
    UnavailableError,
    VersionError,
)


class UsageError(LockstepError):
    """The command cannot run as it was typed, or needs an extra that is not installed."""


class StoppedError(LockstepError):
    """A person or a supervisor stopped the work before it was done."""


class ExitCode(IntEnum):
    """Exit status of the `lockstep` program."""

    OK = 0
    BUG = 1
    USAGE = 2
    SETTINGS = 3
    UNREACHABLE = 4
    VERSION = 5
    STORAGE = 6
    PORT_IN_USE = 7
    DATA = 8
    REFUSED = 9
    DEVICE = 10
    SHORTAGE = 11
    INTERRUPTED = 130
    UNREAD = 141
    """128 + SIGPIPE, as shells say it."""


MEANINGS: dict[ExitCode, str] = {
    ExitCode.OK: "done",
    ExitCode.BUG: "a bug in Lockstep: please report it with what --debug prints",
    ExitCode.USAGE: "wrong command line, missing extra, or a package that is not Lockstep's",
    ExitCode.SETTINGS: "a run file, a settings file, a flag or a variable holds a wrong value",
    ExitCode.UNREACHABLE: "a coordinator or peer that is needed cannot be reached",
    ExitCode.VERSION: "the other side, or a file, speaks another version or breaks the protocol",
    ExitCode.STORAGE: "a disk is full, read-only or damaged",
    ExitCode.PORT_IN_USE: "a port that was asked for belongs to another process",
    ExitCode.DATA: "training data is missing, damaged or different from its manifest",
    ExitCode.REFUSED: (
        "the coordinator refused or removed this node, its replica diverged, or the run has two "
        "histories"
    ),
    ExitCode.DEVICE: (
        "a graphics card, its driver or a rank of the node failed three times in an hour"
    ),
    ExitCode.SHORTAGE: "this machine lacks descriptors or memory for now",
    ExitCode.INTERRUPTED: "stopped by Ctrl-C or SIGTERM before the work was done",
    ExitCode.UNREAD: "the program that was to read the output has ended, as `head` does",
}

_CODES: dict[type[BaseException], ExitCode] = {
    LocalProtocolError: ExitCode.BUG,
    UsageError: ExitCode.USAGE,
    SettingsError: ExitCode.SETTINGS,
    UnavailableError: ExitCode.UNREACHABLE,
    VersionError: ExitCode.VERSION,
    RemoteProtocolError: ExitCode.VERSION,
    StorageError: ExitCode.STORAGE,
    AddressInUseError: ExitCode.PORT_IN_USE,
    DataError: ExitCode.DATA,
    RefusedError: ExitCode.REFUSED,
    DivergedError: ExitCode.REFUSED,
    EquivocationError: ExitCode.REFUSED,
    DeviceError: ExitCode.DEVICE,
    ShortageError: ExitCode.SHORTAGE,
    StoppedError: ExitCode.INTERRUPTED,
    KeyboardInterrupt: ExitCode.INTERRUPTED,
}


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of an error: that of its nearest documented ancestor, else `BUG`."""
    return next((_CODES[kind] for kind in type(error).__mro__ if kind in _CODES), ExitCode.BUG)


def error_of(code: int) -> type[LockstepError]:
    """The kind of error that ends a process with `code`, for a parent that passes on the cause of
    its child's death.
    """
    kinds = (
        kind for kind, own in _CODES.items() if own == code and issubclass(kind, LockstepError)
    )
    return next(kinds, UnavailableError)
