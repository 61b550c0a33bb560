"""Opens rounds: when the next one may begin, which members work in it, on how many samples.

Round r+1 opens when no member computes r any more and at most `overlap` rounds are undecided: with
overlap 1 a round is exchanged while the next is computed; with overlap 0, and before round
`overlap_from`, a round is decided before the next opens.
"""

from coordinator.machine.digest_verdicts import DigestVerdicts
from coordinator.machine.events import Assignment, OpenRound
from coordinator.machine.membership import Member, Membership
from coordinator.machine.pacing import samples_per_share
from coordinator.machine.run_state import RunState
from coordinator.machine.undecided_round import UndecidedRound
from protocol.clock import instants
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from protocol.schedule import scalars


def may_begin(state: RunState, members: Membership, spec: RunSpec) -> bool:
    """Whether steps are left, and the undecided rounds allow one more."""
    undecided_max = spec.rounds.overlap_at(state.next_round)
    planned = state.totals.committed + len(state.undecided)
    if planned >= spec.schedule.steps or len(state.undecided) > undecided_max:
        return False
    return not state.undecided or state.undecided[-1].computed(members.live)


def workers(state: RunState, members: Membership) -> list[Member]:
    """Members that may be given work, sorted by id."""
    return [member for member in members.ready() if member.peer not in state.verdicts.held]


def shortage(state: RunState, members: Membership, spec: RunSpec) -> str:
    """The reason why there are too few workers for the next round; empty when there are enough."""
    start_members = spec.membership.start_members if state.next_round == 0 else 1
    needed, ready = max(spec.rounds.quorum, start_members), len(workers(state, members))
    if ready >= needed:
        return ""
    held = next(iter(state.verdicts.held.values()), "")
    return "; ".join(
        filter(None, (f"waiting for members: {ready} of {needed} are ready", held)),
    )


def muted_reason(verdicts: DigestVerdicts, members: Membership, member: Member) -> str:
    """The reason why the member's payloads do not count at present; empty when they do."""
    return verdicts.muted_reason(member.peer) or members.muted_reason(member)


def begin_round(state: RunState, members: Membership, spec: RunSpec, now_ms: int) -> UndecidedRound:
    """Lease samples to every worker and append the new round to the undecided ones."""
    assignments = _assign(state, members, spec)
    step = state.totals.committed + len(state.undecided)
    opened = UndecidedRound.open(
        state.next_round,
        step,
        instants(state.pace.slot, now_ms),
        scalars(spec.schedule, step),
        assignments,
        copies_min=spec.rounds.copies_min,
    )
    state.next_round += 1
    state.undecided.append(opened)
    return opened


def _assign(state: RunState, members: Membership, spec: RunSpec) -> dict[PeerId, Assignment]:
    ready = workers(state, members)
    speeds = {member.peer: (member.work.speed, member.strikes) for member in ready}
    wanted = samples_per_share(speeds, spec.rounds, state.pace.slot.compute_ms)
    muted = _muted(state, members, ready, spec.rounds.quorum)
    assignments = {}
    for member in ready:
        strikes = member.strikes
        halved = f"share halved {strikes} times for late rounds" if strikes else ""
        shares = state.order.lease(wanted[member.peer])
        reasons = (muted.get(member.peer, halved), state.pace.reason)
        assignments[member.peer] = Assignment(
            member.peer, shares, member.peer in muted, "; ".join(filter(None, reasons))
        )
    return assignments


def _muted(
    state: RunState, members: Membership, ready: list[Member], quorum: int
) -> dict[PeerId, str]:
    """The members that do not count this round, with reasons. No member is muted when fewer than
    the quorum would be left: a run must not wait for members that only a round can free.
    """
    reasons = {
        member.peer: reason
        for member in ready
        if (reason := muted_reason(state.verdicts, members, member))
    }
    return reasons if len(ready) - len(reasons) >= quorum else {}


def opening_of(undecided: UndecidedRound, assignments: tuple[Assignment, ...]) -> OpenRound:
    """The message that opens a round, for the members with these assignments."""
    return OpenRound(
        undecided.round,
        undecided.step,
        undecided.instants,
        undecided.learning_rate_bits,
        undecided.decay_bits,
        assignments,
    )
