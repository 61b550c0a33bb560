"""Decides a round that has closed: it is committed, or it is skipped.

    closed --enough members that decide contribute--> committed: the next entry of the chain
      '------else-----------------------------------> skipped: no payload counts

A commit carries the learning rate of the step that it makes. The opening of the round could not
know it when an earlier round was skipped afterwards.
"""

from coordinator.machine import closing, samples
from coordinator.machine.events import Announced, CommitRound, SkipRound
from coordinator.machine.members.membership import Membership
from coordinator.machine.mixing import edges
from coordinator.machine.pacing import next_pace
from coordinator.machine.payloads import voiding
from coordinator.machine.run_state import RunState
from coordinator.machine.undecided_round import UndecidedRound, entry_of
from protocol.codec.commits import Commit, commit_digest
from protocol.ids import RunId
from protocol.runfile import RunSpec
from protocol.schedule import scalars


def decide(
    undecided: UndecidedRound,
    state: RunState,
    members: Membership,
    spec: RunSpec,
    *,
    run_id: RunId,
    now_ms: int,
) -> CommitRound | SkipRound:
    """Decide the oldest undecided round, which `state` has no longer, and set the pace of the next
    one by it.
    """
    rounds = spec.rounds
    state.decided_round = undecided.round
    needs = closing.needs(undecided, members, now_ms)
    state.pace = next_pace(state.pace, needs, rounds, hides=rounds.hides)
    closing.close(state, undecided, members)
    counted = closing.contributors(undecided, members)
    enough = closing.reaches_quorum(counted, members, spec)
    samples.settle(undecided, counted if enough else (), state, mixes=spec.algorithm.mixes)
    if enough:
        return _commit(undecided, counted, state, members, spec, run_id=run_id)
    state.totals.skipped += 1
    lack = closing.lack_of_quorum(counted, members, spec)
    state.reason = f"round {undecided.round} was skipped: {lack}"
    return SkipRound(undecided.round, state.reason)


def _commit(
    undecided: UndecidedRound,
    counted: list[Announced],
    state: RunState,
    members: Membership,
    spec: RunSpec,
    *,
    run_id: RunId,
) -> CommitRound:
    algorithm, step = spec.algorithm, state.totals.committed
    mix = edges.commit(undecided, counted, state.consensus) if algorithm.mixes else None
    entries = tuple(entry_of(payload, algorithm) for payload in counted)
    rate, decay = scalars(state.schedule(spec), step)
    commit = Commit(run_id, undecided.round, step, entries, rate, decay, state.head, mix)
    state.head, state.head_round = commit_digest(commit), undecided.round
    loss = closing.count(state, undecided, counted, members)
    holders = tuple(undecided.receipts.told_holders(entry.digest) for entry in entries)
    trained = undecided.trained(entries)
    if mix is None:  # else states differ, and nobody needs all payloads
        state.verdicts.open(undecided.round, members, frozenset(p.peer for p in counted))
        state.voids.commit(commit, holders, trained, voiding.voters(members))
    return CommitRound(commit, holders, loss, trained)
