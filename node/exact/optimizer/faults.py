"""The errors of a rank, as ranks tell them to each other and as a state keeps them."""

from node.exact.engine import GradientError
from node.exact.optimizer.agreement import Blame, Fault
from protocol.errors import LockstepError, SettingsError, UnavailableError

TEXT_MAX = 1000
"""Characters of another rank's error that a sentence repeats."""


def fault_of_error(error: Exception) -> Fault:
    """An error as a rank tells it."""
    match error:
        case GradientError():
            return Fault(Blame.GRADIENT, text_of(error))
        case SettingsError():
            return Fault(Blame.SETTINGS, text_of(error))
        case _:
            return Fault(Blame.OTHER, text_of(error))


def error_of_fault(fault: Fault) -> Exception:
    """The error that a rank raises for what it was told."""
    match fault.blame:
        case Blame.GRADIENT:
            return GradientError(fault.text)
        case Blame.SETTINGS:
            return SettingsError(fault.text)
        case Blame.OTHER:
            return UnavailableError(f"expected a step of all ranks, but {fault.text}")


def text_of(error: Exception) -> str:
    """An error in one line."""
    kind = "" if isinstance(error, LockstepError) else f"{type(error).__name__}: "
    return f"{kind}{error}"[:TEXT_MAX]
