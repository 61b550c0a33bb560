"""Opens rounds: when the next one may begin, which members work in it, on how many samples.

Round r+1 opens when no member computes r any more and at most `overlap` rounds are undecided: with
overlap 1 a round is exchanged while the next is computed; with overlap 0, and before a round of
`audit_every`, a round is decided before the next opens.

Where nodes mix parameters a run that its operator ends takes the mean of all first, in a round in
which nobody trains: else there is no model. It is tried `LAST_MEANS_MAX` times, and not at all
while too few members are ready. An operator who asks for a checkpoint makes the next round one of
the mean.
"""

from statistics import median_low

from coordinator.machine.events.effects import Assignment, Effect, OpenRound
from coordinator.machine.rules import closing, edges
from coordinator.machine.rules.pacing import samples_per_share
from coordinator.machine.rules.sums import planning
from coordinator.machine.state.checkpoints import WISH
from coordinator.machine.state.member import Member
from coordinator.machine.state.membership import Membership
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.undecided_round import UndecidedRound
from coordinator.machine.state.verdicts import DigestVerdicts
from protocol.clock import instants
from protocol.ids import PeerId
from protocol.runfile import RunSpec
from protocol.schedule import scalars
from protocol.words import quantity

FRESH_HALVINGS = 2
"""Halvings that make a fresh key's share of the first share of a node: what a key without standing
says of its speed is worth nothing."""

COUNTED_SPEED = 2
"""Times the median speed of those with standing that a key counts at most which was not vouched
for. Worthless work takes no time, and who is given more samples weighs more."""

LAST_MEANS_MAX = 3
"""Tries of the last mean of a run that its operator ends."""


def may_begin(run: Run) -> bool:
    """Whether steps are left, the operator does not end the run without a further one, and the
    undecided rounds allow one more.
    """
    state = run.state
    if state.operator.finishing is not None and not owes_mean(run):
        return False
    undecided_max = run.spec.rounds.overlap_at(state.next_round)
    planned = state.totals.committed + len(state.undecided)
    if planned >= state.schedule(run.spec).steps or len(state.undecided) > undecided_max:
        return False
    if not state.undecided:
        return True
    newest = state.undecided[-1]
    return newest.computed(closing.waited_for(newest, run))


def owes_mean(run: Run) -> bool:
    """Whether a run that its operator ends takes the mean of all members first."""
    state = run.state
    if state.operator.finishing is None or not _wants_mean(state):
        return False
    return state.consensus.tries < LAST_MEANS_MAX and not shortage(run)


def _wants_mean(state: RunState) -> bool:
    """Whether members differ and somebody waits for their mean, which no open round takes."""
    asked = state.checkpoints.wanted == WISH
    ends = state.operator.finishing is not None
    taken = any(each.mean for each in state.undecided)
    return state.consensus.apart and (asked or ends) and not taken


def _workers(run: Run) -> list[Member]:
    """Members that are given work in the next round, sorted by id: all that are ready and not
    demoted, but of fresh keys in a public run only as many as may be counted. Those that were late
    often come last.
    """
    state, members = run.state, run.members
    idle = state.verdicts.held.keys() | members.standing.demoted.keys()
    ready = [member for member in members.ready() if member.peer not in idle]
    fresh = [member.peer for member in ready if not members.decides(member.peer)]
    if not fresh:
        return ready
    drawn = members.standing.drawn_first(state.next_round, fresh)
    drawn.sort(key=lambda peer: bool(members.muted_reason(members.roster[peer])))
    taken = set(drawn[: closing.fresh_max(len(ready) - len(fresh))])
    return [member for member in ready if member.peer in taken or members.decides(member.peer)]


def shortage(run: Run) -> str:
    """The reason why the next round does not open: the operator's word, auditors that differ, or
    too few workers; empty when it does.
    """
    state, members, spec = run.state, run.members, run.spec
    paused = state.operator.waits() if state.operator.finishing is None else ""
    if waits := paused or state.verdicts.contradiction:
        return waits
    start_members = spec.membership.start_members if state.next_round == 0 else 1
    deciding = [each for each in _workers(run) if members.decides(each.peer)]
    needed, ready = max(spec.rounds.quorum, start_members), len(deciding)
    if ready >= needed:
        return ""
    held = next(iter(state.verdicts.held.values()), "")
    which = "members with standing" if members.public else "members"
    return "; ".join(
        filter(None, (f"waiting for {which}: {ready} of {needed} are ready", held)),
    )


def muted_reason(verdicts: DigestVerdicts, members: Membership, member: Member) -> str:
    """The reason why the member's payloads do not count at present; empty when they do."""
    return verdicts.muted_reason(member.peer) or members.muted_reason(member)


def open_next(run: Run, now_ms: int) -> list[Effect]:
    """Open the next round, or say why it does not open."""
    if reason := shortage(run):
        run.state.reason = reason
        return []
    opened = _begin_round(run, now_ms)
    return [effect(opened, tuple(opened.assignments.values()), run.spec)]


def _begin_round(run: Run, now_ms: int) -> UndecidedRound:
    """Lease samples to every worker, unless the round only mixes, and append the new round to the
    undecided ones.
    """
    state, spec = run.state, run.spec
    equal = spec.algorithm.facts.replicas_equal
    step = state.totals.committed + len(state.undecided)
    in_force = spec.model_copy(update={"schedule": state.schedule(spec)})
    mean, why = _choose_mixture(state, in_force, step)
    assignments = _assign(run, trains=not why)
    opened = UndecidedRound.open(
        state.next_round,
        step,
        instants(edges.slot(in_force, state.pace.slot, mean=mean), now_ms),
        scalars(in_force.schedule, step),
        assignments,
        copies_min=spec.rounds.copies_min if equal else 0,
        least_ms=closing.least_ms(spec),
    )
    who = "1 member trains" if len(assignments) == 1 else f"{len(assignments)} members train"
    state.reason = why or f"{who} round {opened.round}"
    if not equal:
        opened.mean, opened.only_mixes = mean, bool(why)
        edges.plan(opened, in_force, state.consensus, run.members)
    else:
        opened.sums = planning.plan(opened, run)
    opened.receipts.auditors = frozenset(state.verdicts.auditors)
    state.next_round += 1
    state.undecided.append(opened)
    return opened


def _choose_mixture(state: RunState, spec: RunSpec, step: int) -> tuple[bool, str]:
    """Choose how the round of this step mixes, and count it: (whether it takes the mean of all, why
    nobody trains in it or nothing).
    """
    mixing_spec, consensus = spec.algorithm.mixing, state.consensus
    if spec.algorithm.facts.replicas_equal:
        return False, ""
    mean = mixing_spec.is_mean(step, spec.schedule.steps) or _wants_mean(state)
    if state.operator.finishing is not None:
        consensus.tries += 1
        return mean, f"the operator ends the run: round {state.next_round} takes the last mean"
    if mean or not (why := consensus.too_far(mixing_spec.critical)):
        return mean, ""
    consensus.only_mixed += 1
    consensus.mixed_round = state.next_round
    return False, f"round {state.next_round} only mixes: {why}"


def effect(
    undecided: UndecidedRound, assignments: tuple[Assignment, ...], spec: RunSpec
) -> OpenRound:
    """The opening of a round, for these of its workers. Where witnesses are drawn, in secret, or
    edges decide, every member reports every payload.
    """
    equal, mean = spec.algorithm.facts.replicas_equal, undecided.mean
    thinned = spec.membership.trust == "known" and equal
    return OpenRound(
        undecided.round,
        undecided.step,
        undecided.instants,
        undecided.learning_rate_bits,
        undecided.decay_bits,
        assignments,
        len(undecided.assignments) if thinned else 0,
        mean=mean,
        among_neighbours=not (mean or spec.algorithm.meets_all),
        only_mixes=undecided.only_mixes,
        plan=undecided.sums.plan() if undecided.sums else (),
    )


def _assign(run: Run, *, trains: bool) -> dict[PeerId, Assignment]:
    state, members, ready = run.state, run.members, _workers(run)
    speeds = _speeds(members, ready)
    wanted = samples_per_share(speeds, run.spec.rounds, state.pace.slot.compute_ms)
    muted = _muted(ready, run)
    assignments = {}
    for member in ready:
        strikes = member.strikes
        halved = f"share halved: late in {quantity(strikes, 'round')}" if strikes else ""
        if members.standing.is_tardy(member.peer):
            halved = f"share halved: {members.remark(member)}"
        shares = state.order.lease(wanted[member.peer]) if trains else ()
        reasons = (muted.get(member.peer, halved), state.pace.reason)
        assignments[member.peer] = Assignment(
            member.peer, shares, member.peer in muted, "; ".join(filter(None, reasons))
        )
    return assignments


def _speeds(members: Membership, ready: list[Member]) -> dict[PeerId, tuple[int, int]]:
    """Speed and strikes of each worker, by which the samples are leased."""
    deciding = [member for member in ready if members.decides(member.peer)]
    known = [member.work.speed for member in deciding if member.work.speed]
    most = COUNTED_SPEED * median_low(known) if known else 0
    found = {member.peer: (0, member.strikes + FRESH_HALVINGS) for member in ready}
    for member in deciding:
        bounded = members.public and members.standing.word(member.peer) != "vouched"
        speed = min(member.work.speed, most) if bounded else member.work.speed
        found[member.peer] = speed, member.strikes + members.standing.is_tardy(member.peer)
    return found


def _muted(ready: list[Member], run: Run) -> dict[PeerId, str]:
    """The members that do not count this round, with reasons. No member is muted when fewer than
    the quorum would be left: a run must not wait for members that only a round can free.
    """
    members = run.members
    reasons = {
        member.peer: reason
        for member in ready
        if (reason := muted_reason(run.state.verdicts, members, member))
    }
    deciding = sum(members.decides(member.peer) for member in ready)
    if deciding - sum(map(members.decides, reasons)) >= run.spec.rounds.quorum:
        return reasons
    return {peer: reason for peer, reason in reasons.items() if not members.decides(peer)}
