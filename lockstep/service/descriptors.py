"""The descriptors of a long-lived process: each connection and each open file takes one.

    limit   |---- reserve ----|-- admin port, public page --|----------- nodes and peers ----------|
             own files, links   a sixteenth of the rest each  connections that they open
             that it dials

Strangers who open connections can take all of the last parts, and nothing of the first.
"""

import contextlib
from dataclasses import dataclass

from protocol.limits import CONNECTIONS_MAX

RESERVE = 256
"""Descriptors for everything of the process's own: 40 without any peer, and twice 64 for the peers
that a node dials, of which it may be fetching the certificates."""

RESERVE_SHARE = 3 / 4
"""Part of the limit that the reserve takes at most, where a process may open no more than it."""

CONNECTION_DESCRIPTORS = 3
"""Descriptors of a connection at a port behind a gate: its own, and both ends of the way from the
gate to the server."""

PAGE_SHARE = 1 / 16
"""Part of the rest that the admin port gets, and that the public page gets."""


@dataclass(frozen=True, slots=True)
class ConnectionRoom:
    """Connections that others may open to a process at once."""

    peers: int
    """At the ports for nodes and peers."""

    admin: int
    """At the admin port."""

    page: int
    """At the public page."""


def raise_limit() -> ConnectionRoom:
    """Raises this process's limit of open files as far as it is of use and the system allows;
    returns the connections that fit beside the reserve.
    """
    wanted = RESERVE + CONNECTION_DESCRIPTORS * CONNECTIONS_MAX
    try:
        import resource  # not on Windows, which has no such limit
    except ImportError:
        return places(wanted)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    infinite = resource.RLIM_INFINITY
    aim = wanted if hard == infinite else min(wanted, hard)
    while soft != infinite and soft < aim:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (aim, hard))
            break
        aim = (soft + aim) // 2  # macOS takes less than its hard limit
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return places(wanted if soft == infinite else min(wanted, soft))


def places(limit: int) -> ConnectionRoom:
    """The connections that fit into a limit of open files beside the reserve, at least one of each
    kind.
    """
    rest = limit - min(RESERVE, int(limit * RESERVE_SHARE))
    share = int(rest * PAGE_SHARE)
    peers = (rest - 2 * share) // CONNECTION_DESCRIPTORS
    return ConnectionRoom(max(1, peers), max(1, share), max(1, share // CONNECTION_DESCRIPTORS))
