"""Decides a round that has closed: it is committed, or it is skipped.

    closed --enough members that decide contribute--> committed: the next entry of the chain
      '------else-----------------------------------> skipped: no payload counts

A commit carries the learning rate of the step that it makes. The opening of the round could not
know it when an earlier round was skipped afterwards.
"""

from coordinator.machine.events.effects import CommitRound, SkipRound
from coordinator.machine.events.inputs import Announced
from coordinator.machine.rules import closing, edges, samples, voiding
from coordinator.machine.rules.pacing import next_pace
from coordinator.machine.state.run import Run
from coordinator.machine.state.undecided_round import UndecidedRound, entry_of
from protocol.codec.commits import Commit, commit_digest
from protocol.schedule import scalars


def decide(undecided: UndecidedRound, run: Run, now_ms: int) -> CommitRound | SkipRound:
    """Decide the oldest undecided round, which the state has no longer, and set the pace of the
    next one by it.
    """
    state, rounds = run.state, run.spec.rounds
    state.decided_round = undecided.round
    needs = closing.needs(undecided, run.members, now_ms)
    state.pace = next_pace(state.pace, needs, rounds, hides=rounds.hides)
    closing.close(undecided, run)
    counted = closing.contributors(undecided, run.members)
    enough = closing.reaches_quorum(counted, run)
    samples.settle(undecided, counted if enough else (), run)
    if enough:
        return _commit(undecided, counted, run)
    state.totals.skipped += 1
    lack = closing.lack_of_quorum(counted, run)
    state.reason = f"round {undecided.round} was skipped: {lack}"
    return SkipRound(undecided.round, state.reason)


def _commit(undecided: UndecidedRound, counted: list[Announced], run: Run) -> CommitRound:
    state, members = run.state, run.members
    algorithm, step = run.spec.algorithm, state.totals.committed
    equal = algorithm.facts.replicas_equal
    mix = None if equal else edges.commit(undecided, counted, state.consensus)
    entries = tuple(entry_of(payload, algorithm) for payload in counted)
    rate, decay = scalars(state.schedule(run.spec), step)
    commit = Commit(run.run_id, undecided.round, step, entries, rate, decay, state.head, mix)
    state.head, state.head_round = commit_digest(commit), undecided.round
    loss = closing.count(undecided, counted, run)
    holders = tuple(undecided.receipts.told_holders(entry.digest) for entry in entries)
    trained = undecided.trained(entries)
    if mix is None:  # else states differ, and nobody needs all payloads
        deciding = {member.peer for member in members.ready() if members.decides(member.peer)}
        authors = frozenset(payload.peer for payload in counted)
        state.verdicts.tally.open(undecided.round, deciding, authors)
        state.voids.commit(commit, holders, trained, voiding.voters(run))
    return CommitRound(commit, holders, loss, trained)
