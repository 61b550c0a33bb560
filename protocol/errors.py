"""The errors of Lockstep, one type for each culprit.

The type says who has to act: a peer that sent bad bytes (`RemoteProtocolError`), our own code that
misused an interface (`LocalProtocolError`), a person who wrote a setting (`SettingsError`), or the
world (`UnavailableError`, `StorageError`, `ShortageError`). Every message says what was expected,
what was found and what to do. Foreign exceptions (grpc, sqlite3, OSError) are translated to these
where they enter the project.
"""


class LockstepError(Exception):
    """Base of every error that a person should read as one line."""


class RemoteProtocolError(LockstepError):
    """Another party sent something that the protocol does not allow; its name belongs in the
    message.
    """


class LocalProtocolError(LockstepError):
    """Our own code asked for something that the protocol does not allow: a bug here."""


class SettingsError(LockstepError, ValueError):
    """A run file, a flag or an environment variable holds a value outside its bounds."""


class VersionError(LockstepError):
    """The other side, or a file, speaks another version of the protocol."""


class UnavailableError(LockstepError):
    """A party that is needed cannot be reached."""


class RefusedError(LockstepError):
    """The coordinator refused or removed this node, with its reason."""


class StorageError(LockstepError):
    """A disk is full, read-only or damaged."""


class DeviceError(LockstepError):
    """A device of this machine failed while it computed: a graphics card, its driver, its
    memory.
    """


class ShortageError(LockstepError):
    """This machine lacks descriptors or memory for now; work waits for them (`shortage`)."""


class AddressInUseError(LockstepError):
    """A port that was asked for belongs to another process."""


class DataError(LockstepError):
    """Training data is missing, damaged or not what its manifest says."""


class DivergedError(LockstepError):
    """A replica is not what the log of the run says it must be."""


class EquivocationError(LockstepError):
    """A coordinator's key has signed two histories of one run, and the proof is kept."""


def first_line(error: BaseException) -> str:
    """An error's first line, or its type where it has no words: torch puts a stack below it."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
