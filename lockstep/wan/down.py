"""`lockstep wan down`: removes the leftovers of killed laboratories."""

from lockstep.console import messages, output
from lockstep.exit_codes import UsageError
from lockstep.wan.lab.laboratory import unable
from lockstep.wan.lab.namespaces import remove_leftovers


def wan_down(*, even_in_use: bool = False) -> None:
    """Removes leftovers, with `even_in_use` every laboratory; prints the namespaces that it
    removed, and why it kept others.
    """
    if reason := unable():
        raise UsageError(reason)
    removed, kept = remove_leftovers(even_in_use=even_in_use)
    for why in kept:
        messages.print(f"kept: {why}", soft_wrap=True)
    output.print(f"removed {len(removed)} namespaces" if removed else "nothing was left over")
