"""Decides a round that has closed: it is committed, or it is skipped.

    closed --enough members that decide contribute--> committed: the next entry of the chain
      '------else-----------------------------------> skipped: no payload counts

Where summers add, a round that has closed is decided when they are done, and skipped when they have
settled no range.

A commit carries the learning rate of the step that it makes. The opening of the round could not
know it when an earlier round was skipped afterwards.
"""

from coordinator.machine.events.effects import CommitRound, SkipRound
from coordinator.machine.events.inputs import Announced
from coordinator.machine.rules import closing, edges, samples, voiding
from coordinator.machine.rules.sums import adding
from coordinator.machine.state.run import Run
from coordinator.machine.state.undecided_round import UndecidedRound, entry_of
from protocol.codec.commits import Commit, commit_digest
from protocol.schedule import scalars


def decide(undecided: UndecidedRound, run: Run, now_ms: int) -> CommitRound | SkipRound:
    """Decide the oldest undecided round, which the state has no longer."""
    state = run.state
    state.decided_round = undecided.round
    usual = not (undecided.disturbed or undecided.mean or undecided.only_mixes)
    state.period.note(undecided.instants.opened, state.last_ms, usual=usual)
    lack = ""
    if undecided.sums and undecided.sums.adding:
        authors = undecided.sums.adding.authors
        counted = [undecided.announced[each.author] for each in authors]
        adding.book(undecided, run, now_ms)
        if not any(found.settled for found in undecided.sums.adding.by_range):
            lack = "its summers agreed on no sum"
    else:
        counted = closing.close(undecided, run, now_ms)
        if not closing.reaches_quorum(counted, run):
            lack = closing.lack_of_quorum(counted, run)
    samples.settle(undecided, () if lack else counted, run)
    if not lack:
        return _commit(undecided, counted, run)
    state.totals.skipped += 1
    state.reason = f"round {undecided.round} was skipped: {lack}"
    return SkipRound(undecided.round, state.reason)


def may_decide(undecided: UndecidedRound, run: Run) -> bool:
    """Whether the round's decision may fall now."""
    if undecided.sums and undecided.sums.adding:
        return undecided.sums.adding.is_done
    return closing.may_close(undecided, run)


def _commit(undecided: UndecidedRound, counted: list[Announced], run: Run) -> CommitRound:
    state, members = run.state, run.members
    algorithm, step = run.spec.algorithm, state.totals.committed
    equal = algorithm.facts.replicas_equal
    mix = None if equal else edges.commit(undecided, counted, state.consensus)
    entries = tuple(entry_of(payload, algorithm) for payload in counted)
    rate, decay = scalars(state.schedule(run.spec), step)
    sums, signers = adding.results(undecided, entries, run)
    commit = Commit(run.run_id, undecided.round, step, entries, rate, decay, state.head, mix, sums)
    state.head, state.head_round = commit_digest(commit), undecided.round
    loss = closing.count(undecided, counted, run)
    state.totals.result_bytes += commit.result_bytes
    copied = tuple(undecided.receipts.told_holders(entry.digest) for entry in entries)
    holders = signers if sums else copied
    trained = undecided.trained(entries)
    if mix is None:  # else states differ, and nobody needs all payloads
        deciding = {member.peer for member in members.ready() if members.decides(member.peer)}
        authors = frozenset(payload.peer for payload in counted)
        state.verdicts.tally.open(undecided.round, deciding, authors)
        state.voids.commit(commit, holders, trained, voiding.voters(run))
    return CommitRound(commit, holders, loss, trained, adding.signed(undecided))
