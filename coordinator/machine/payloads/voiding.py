"""The effects of a void on the state of a run; `voids` beside it says when there is one."""

from coordinator.machine import samples
from coordinator.machine.events import Chained, Effect, VoidDue
from coordinator.machine.members.membership import Membership
from coordinator.machine.run_state import RunState
from protocol.codec.chain import Void, entry_digest
from protocol.ids import PeerId, RunId


def has_standing(members: Membership, peer: PeerId) -> bool:
    """Whether the word of a node counts where members are counted."""
    return members.get(peer) is not None and members.decides(peer)


def voters(members: Membership) -> set[PeerId]:
    """The members that decide whether a payload of the round that is committed now is there."""
    ready = {member.peer for member in members if member.state == "ready"}
    return {peer for peer in ready if has_standing(members, peer)}


def plan(state: RunState, members: Membership, now_ms: int) -> None:
    """Plan which payloads become void, and when."""
    slot_ms = state.pace.slot.milliseconds
    state.voids.review(members, lambda peer: has_standing(members, peer), slot_ms, now_ms)


def take_out(event: VoidDue, state: RunState, members: Membership, run_id: RunId) -> list[Effect]:
    """Take a payload out of the log. Members that have applied it are set back: they find the void
    in the chain and replay the log.
    """
    round, reason = event.round, state.voids.reason(event.round, event.digest)
    if reason is None:
        return []  # a member that lacked it went at the same instant
    void = Void(run_id, round, event.digest, reason, state.head)
    state.head = entry_digest(void)
    samples.take_out(state, round, event.digest)
    state.voids.note(void)
    for member in members:
        if member.round >= round:
            member.round = round - 1
            members.set_back(member.peer)
    state.reason = f"a payload of round {round} is void: {reason}"
    return [Chained(void), *state.verdicts.withdraw_from(round)]
