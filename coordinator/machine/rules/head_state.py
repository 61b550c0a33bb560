"""Whether some member holds the state after the newest commit, and the restart when none does.

The coordinator keeps commits and no parameters. When every node that had applied the newest commit
is gone with its disk, the members that are left wait for each other, and no round can open. Nobody
begins again from genesis in silence: the status names the nodes that had the state.

A member whose state reaches the head says Ready at once. So the state is held by nobody when no
member was ready for a lease, although some member has waited for as long. Members that were told to
discard their states are another matter: they make them again from the log.

When no such node comes back, the operator names a checkpoint. An entry of the chain says that the
run goes on from it: open rounds are skipped, every member is set back and takes the checkpoint, and
what was reported before is history. A member that shows the head's state first saves the run, and
the restart is not made; only the operator's force overrules that.
"""

from coordinator.machine.events.effects import Chained, Effect, SkipRound
from coordinator.machine.events.inputs import RestartAsked
from coordinator.machine.rules import samples
from coordinator.machine.state.member import FormerMember, Member
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from protocol.border.text import one_line
from protocol.clock import length_text
from protocol.codec.chain import Restart, entry_digest
from protocol.ids import PeerId

NAMED_MAX = 3
"""Nodes that are named to be brought back."""

RESTARTS = "the run restarts from a checkpoint"
"""The reason why the rounds that are open then are skipped."""


def note_readiness(run: Run, now_ms: int) -> None:
    """Note, after an event, since when no member is ready."""
    if any(member.state == "ready" for member in run.members.roster.values()):
        run.state.unready_since_ms = 0
    elif not run.state.unready_since_ms:
        run.state.unready_since_ms = now_ms


def held_by_nobody(run: Run, now_ms: int) -> str:
    """Why no round can open until some node is brought back, with the nodes that had the state of
    the log's head; empty while a member holds it, may still show it, or none waits.
    """
    state = run.state
    if state.head_round < 0 or not state.unready_since_ms or state.end.concluded:
        return ""
    waiting = [each for each in run.members if each.connected and each.state == "catching up"]
    if not waiting or any(_remakes(state, member) for member in waiting):
        return ""
    since_ms = max(state.unready_since_ms, min(member.joined_ms for member in waiting))
    if now_ms - since_ms < run.members.lease_ms:
        return ""
    who = "1 member waits" if len(waiting) == 1 else f"{len(waiting)} members wait"
    return (
        f"round {state.head_round}'s state is held by nobody: {who} with an older one and cannot "
        f"catch up; {_cure(state, now_ms)}"
    )


def refusal(state: RunState, asked: RestartAsked) -> str:
    """Why the run may not go on from a checkpoint, whatever comes; empty while it may."""
    if state.head_round < 0:
        return "no round is committed: every node has the state at which the run begins"
    if state.end.concluded:
        return "the run is finished"
    newest = state.restarts[-1] if state.restarts else None
    if asked.forced and newest and newest.sha256 == asked.sha256:
        return f"the run has gone on from this checkpoint already, after round {newest.round}"
    return ""


def take(asked: RestartAsked, run: Run, now_ms: int) -> list[Effect]:
    """Let the run go on from a checkpoint; nothing when a member showed the head's state first."""
    state = run.state
    if refusal(state, asked) or not (held_by_nobody(run, now_ms) or asked.forced):
        return []
    effects: list[Effect] = []
    for undecided in state.undecided:
        state.decided_round = undecided.round
        samples.settle(undecided, (), run)
        state.totals.skipped += 1
        effects.append(SkipRound(undecided.round, RESTARTS))
    state.undecided.clear()
    entry = Restart(run.run_id, state.head_round, asked.sha256, asked.state_digest, state.head)
    state.head = entry_digest(entry)
    state.restarts.append(entry)
    state.voids.rounds.clear()
    state.verdicts.begin_anew(entry.round, entry.state_digest)
    for member in run.members:
        member.round = min(member.round, entry.round - 1)
        run.members.set_back(member.peer)
    state.unready_since_ms = now_ms
    state.reason = f"{RESTARTS} after round {entry.round}: members take its state"
    return [*effects, Chained(entry)]


def _remakes(state: RunState, member: Member) -> bool:
    """Whether the member replays the log because it was told to."""
    record = state.verdicts.records.get(member.peer)
    return record is not None and record.asked > 0


def _cure(state: RunState, now_ms: int) -> str:
    newest_entry = state.restarts[-1] if state.restarts else None
    if newest_entry and newest_entry.round == state.head_round:
        return (
            "the run goes on from a checkpoint that no member has: start a node with "
            f"--restart-from CHECKPOINT, whose SHA-256 is {newest_entry.sha256.hex()[:16]}"
        )
    former = state.members.former
    newest = max((each.round for each in former.values()), default=-1)
    holders = [(peer, each) for peer, each in former.items() if each.round == newest]
    if not holders:
        return (
            "no node that had it is known here: bring back any earlier member, with its disk, or "
            "go on from a checkpoint (--restart-from)"
        )
    latest_first = sorted(holders, key=lambda holder: (-holder[1].gone_ms, holder[0]))
    names = " or ".join(_named(*holder, now_ms) for holder in latest_first[:NAMED_MAX])
    older = "" if newest == state.head_round else f", which had round {newest}"
    return f"bring back {names}{older}, with its disk, or go on from a checkpoint (--restart-from)"


def _named(peer: PeerId, former: FormerMember, now_ms: int) -> str:
    name = f"{one_line(former.name)!r}, " if former.name else ""
    ago = length_text(max(0, now_ms - former.gone_ms) // 1000, "seconds")
    return f"node {peer} ({name}last seen {ago} ago by the run's clock)"
