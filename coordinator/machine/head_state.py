"""Whether some member holds the state after the newest commit.

The coordinator keeps commits and no parameters. When every node that had applied the newest commit
is gone with its disk, the members that are left wait for each other, and no round can open. Nobody
begins again from genesis in silence: the status names the nodes that had the state.

A member whose state reaches the head says Ready at once. So the state is held by nobody when no
member was ready for a lease, although some member has waited for as long. Members that were told to
discard their states are another matter: they make them again from the log.
"""

from coordinator.machine.members.member import FormerMember, Member
from coordinator.machine.members.membership import Membership
from coordinator.machine.run_state import RunState
from protocol.ids import PeerId
from protocol.validation import plain_text

NAMED_MAX = 3
"""Nodes that are named to be brought back."""


def note_readiness(state: RunState, members: Membership, now_ms: int) -> None:
    """Note, after an event, since when no member is ready."""
    if any(member.state == "ready" for member in members.roster.values()):
        state.unready_since_ms = 0
    elif not state.unready_since_ms:
        state.unready_since_ms = now_ms


def held_by_nobody(state: RunState, members: Membership, lease_ms: int, now_ms: int) -> str:
    """Why no round can open until some node is brought back, with the nodes that had the state of
    the log's head; empty while a member holds it, may still show it, or none waits.
    """
    if state.head_round < 0 or not state.unready_since_ms or state.end.concluded:
        return ""
    waiting = [each for each in members if each.connected and each.state == "catching up"]
    if not waiting or any(_remakes(state, member) for member in waiting):
        return ""
    since_ms = max(state.unready_since_ms, min(member.joined_ms for member in waiting))
    if now_ms - since_ms < lease_ms:
        return ""
    who = "1 member waits" if len(waiting) == 1 else f"{len(waiting)} members wait"
    return (
        f"round {state.head_round}'s state is held by nobody: {who} with an older one and cannot "
        f"catch up; {_cure(state, now_ms)}"
    )


def _remakes(state: RunState, member: Member) -> bool:
    """Whether the member replays the log because it was told to."""
    record = state.verdicts.records.get(member.peer)
    return record is not None and record.asked > 0


def _cure(state: RunState, now_ms: int) -> str:
    former = state.members.former
    newest = max((each.round for each in former.values()), default=-1)
    holders = [(peer, each) for peer, each in former.items() if each.round == newest]
    if not holders:
        return "no node that had it is known here: bring back any earlier member, with its disk"
    latest_first = sorted(holders, key=lambda holder: (-holder[1].gone_ms, holder[0]))
    names = " or ".join(_named(*holder, now_ms) for holder in latest_first[:NAMED_MAX])
    older = "" if newest == state.head_round else f", which had round {newest}"
    return f"bring back {names}{older}, with its disk"


def _named(peer: PeerId, former: FormerMember, now_ms: int) -> str:
    name = f"{plain_text(former.name)!r}, " if former.name else ""
    return f"node {peer} ({name}last seen {_ago(now_ms - former.gone_ms)} ago by the run's clock)"


def _ago(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    for size, unit in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
