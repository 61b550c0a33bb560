"""The part of a node's status that tells its owner where the node stands in its run."""

from typing import Any

from node.control.client import CoordinatorClient, SessionState
from node.status import NodeStatus
from protocol import wire_pb2 as wire
from protocol.run_info import RunInfo


def owner_view(
    client: CoordinatorClient, status: NodeStatus, info: RunInfo | None, hardware: str
) -> dict[str, Any]:
    """The standing in words, the run and the part in it, and the time to the bell; `info` is None
    before the run is known.
    """
    own = status.standing
    offline = client.offline if info and client.state is SessionState.LOST else ""
    state, reason = own.words(status.doing, status.phase, offline)
    bell_ms = own.bell_in_ms(client.now_ms())
    return {
        "standing": {"state": state, "reason": reason},
        "run": {
            "run_id": info.run_id if info else "",
            "name": info.spec.name if info else "",
            "steps": status.steps or (info.spec.schedule.steps if info else 0),
            "seconds_left": None if offline else status.told.left_ms / 1000 or None,
        },
        "part": status.told.part,
        "key": _key(status.told),
        "share": own.share,
        "bell_in_seconds": None if bell_ms is None else bell_ms / 1000,
        "members": client.members.member_count,
        "sessions_lost": client.sessions_lost,
        "hardware": hardware,
    }


def _key(told: wire.HeartbeatReply) -> dict[str, int] | None:
    """Rounds of a new key that count, those that it needs until its word counts in full, and the
    round of the run from which on that may be; None for one whose word does.
    """
    if not told.standing_rounds:
        return None
    return {
        "rounds": told.fresh_rounds,
        "needed": told.standing_rounds,
        "counts_after": told.standing_round,
    }
