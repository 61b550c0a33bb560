"""Committed payloads that no member can give: when they are declared void, and the effects.

    committed --a member lacks it--> lacked --all lack it, or two in three--> planned --> void
        |                              ^                                         |
        |                              '---- a member got it, came or went ------'
        '--more than a third of the voters have applied the commit--> safe

A commit names payloads that members said they hold. When that was a lie, or when everybody who held
one is gone, no replica can apply the commit and the run stands still. So nodes that get a payload
from nobody say so, and the coordinator takes the payload out of the log by an entry of the chain.

Rules
- Voters are the members with standing that were ready when the round was committed. A member
  that comes later cannot rewrite what was before; but when all voters are gone and none has said
  that it applied the commit, all members with standing vote that are ready or lack the payload:
  one that is still further back can say nothing of it.
- Unanimous: every voter that is connected lacks the payload, none has applied the commit, and no
  other member is known to hold it. Then it is void `SLOTS` slots after the first complaint.
- Two in three of them lack it, whatever the others say: it is void after `PATIENCE_MS`. Some are
  lying, or cannot reach the rest of the run. A third of liars neither makes a payload void nor
  saves one.
- Where an auditor has applied the commit, a payload becomes void only if every voter lacks it.
- What more than a third of the voters have applied is history, and never becomes void, whoever is
  left. So only the newest commits are kept here, and at most `ROUNDS_KEPT` of them.
- A member that applied the commit holds a state that the chain no longer makes. It is set back, and
  it finds the void in the chain, discards its state and replays. Its reports until then are known
  by their number of voids (`expected`) and count for nothing: nobody is blamed.
"""

from coordinator.machine.events.effects import Chained, Effect
from coordinator.machine.events.inputs import NotHeld, VoidDue
from coordinator.machine.rules import samples
from coordinator.machine.state.member import Member
from coordinator.machine.state.run import Run
from coordinator.machine.state.voids import CommittedPayloads
from protocol.codec.chain import Void, VoidReason, entry_digest
from protocol.ids import Digest, PeerId

SLOTS = 2
"""Slots after the first complaint in which a payload that everybody lacks may still appear."""

LEAST_MS = 4_000
"""Least time for that, where slots are short: a link that broke is made again by then."""

PATIENCE_MS = 60_000
"""Time after the first complaint in which a payload that some members do not lack may still spread.
A wrong decision costs those members a replay, so it is longer than a short fault of the network."""


def news(said: NotHeld, run: Run) -> NotHeld | None:
    """The part of a member's complaint that is new; a former member's: none of it."""
    voids, peer, round = run.state.voids, said.peer, said.round
    digests = voids.news(peer, round, said.digests) if run.members.get(peer) else ()
    return NotHeld(peer, round, digests) if digests else None


def take(event: NotHeld | VoidDue, run: Run, now_ms: int) -> list[Effect]:
    """A member lacks payloads, or the time is over in which one could still appear."""
    if isinstance(event, VoidDue):
        return _take_out(event, run)
    if new := news(event, run):
        run.state.voids.complain(new.peer, new.round, new.digests, now_ms)
    return []


def voters(run: Run) -> set[PeerId]:
    """The members that decide whether a payload of the round that is committed now is there."""
    return {
        member.peer
        for member in run.members
        if member.state == "ready" and run.members.decides(member.peer)
    }


def plan(run: Run, now_ms: int) -> None:
    """Plan which payloads become void, and when. To be called after each event."""
    slot_ms = run.state.pace.slot.milliseconds
    for round, digest, complaint in run.state.voids.complaints():
        reason = _verdict(run.state.voids.rounds[round], digest, run)
        if reason != complaint.reason:
            patient = reason == "most lack it"
            wait_ms = PATIENCE_MS if patient else max(LEAST_MS, SLOTS * slot_ms)
            complaint.reason = reason
            complaint.due_ms = max(now_ms, complaint.since_ms + wait_ms)


def _take_out(event: VoidDue, run: Run) -> list[Effect]:
    """Take a payload out of the log. Members that have applied it are set back: they find the void
    in the chain and replay the log.
    """
    state, round = run.state, event.round
    reason = state.voids.reason(round, event.digest)
    if reason is None:
        return []  # a member that lacked it went at the same instant
    void = Void(run.run_id, round, event.digest, reason, state.head)
    state.head = entry_digest(void)
    samples.take_out(state, round, event.digest)
    state.voids.note(void)
    for member in run.members:
        if member.round >= round:
            member.round = round - 1
            run.members.set_back(member.peer)
    state.reason = f"a payload of round {round} is void: {reason}"
    return [Chained(void), *state.verdicts.withdraw_from(round)]


def _verdict(payloads: CommittedPayloads, digest: Digest, run: Run) -> VoidReason | None:
    members = run.members
    lacking, holders = payloads.lacked[digest].lacking, payloads.holders[digest]
    bound = bool(payloads.applied) or any(members.get(peer) for peer in payloads.voters)
    asked = [
        member.peer
        for member in members
        if member.connected
        and members.decides(member.peer)
        and (member.peer in payloads.voters if bound else _may_know(member, lacking))
    ]
    short = sum(peer in lacking for peer in asked)
    if not asked or 3 * short < 2 * len(asked):
        return None
    hopes = {*holders, *payloads.applied} - lacking
    if short == len(asked) and not any(map(run.is_here, hopes)):
        return "nobody has it"
    return None if payloads.audited else "most lack it"


def _may_know(member: Member, lacking: set[PeerId]) -> bool:
    """Whether a member has come as far as the round, by its state or by its complaint."""
    return member.state == "ready" or member.peer in lacking
