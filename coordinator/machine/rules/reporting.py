"""A member reports its state: after a commit, and when it has caught up.

Rules
- A report of a state that the log does not make any more is ignored: its node will discard it.
- A member whose report is judged wrong is not ready.
- One that is ready holds what it has named again, and is given its work of open rounds again, as
  author and as summer.
"""

from coordinator.machine.events.effects import AskResync, Effect, Evict, TellMembers
from coordinator.machine.events.inputs import Applied, Ready
from coordinator.machine.rules import membership, opening
from coordinator.machine.rules.judging import Judge
from coordinator.machine.rules.sums import adding
from coordinator.machine.state.run import Run


def is_news(said: Applied | Ready, run: Run) -> bool:
    """Whether the machine takes the report: a member's, whose state may be one of this log."""
    ahead = isinstance(said, Applied) and said.round > run.state.head_round
    return run.members.get(said.peer) is not None and not ahead


def take(said: Applied | Ready, run: Run, now_ms: int) -> list[Effect]:
    """A member reports the state after a round."""
    state = run.state
    if not is_news(said, run):
        return []  # evicted while this was on the way; the node will say hello again
    if isinstance(said, Ready) and said.round > state.head_round:
        return membership.follow(Judge(run, now_ms).send_back(said, state.head_round), run, now_ms)
    if state.is_outdated(said):
        return []  # said before it heard of a void or a restart
    if isinstance(said, Applied):
        run.members.note_applied(said.peer, said.round, now_ms)
        state.consensus.hear(said)
    state.voids.apply(said.peer, said.round)
    judged = _judged(said, run, now_ms)
    effects = membership.follow(judged, run, now_ms)
    wrong = any(isinstance(each, AskResync | Evict) and each.peer == said.peer for each in judged)
    if isinstance(said, Applied) or wrong:
        return effects
    return effects + _welcome_back(said, run, now_ms)


def _judged(said: Applied | Ready, run: Run, now_ms: int) -> list[Effect]:
    """The verdicts on a reported state; nobody is blamed where nodes differ by design."""
    if run.spec.algorithm.facts.replicas_equal:
        return Judge(run, now_ms).report(said)
    return run.state.consensus.report(said, len(run.members))


def _welcome_back(said: Ready, run: Run, now_ms: int) -> list[Effect]:
    effects, undecided = list[Effect](), run.state.undecided
    if member := run.members.get(said.peer):
        run.members.note_ready(member, said.round, now_ms)
        if not member.listed:
            member.listed = True
            effects.append(TellMembers(came=(said.peer,)))
    for each in undecided:
        each.settle_doubt(said.peer, now_ms)
    for each in undecided:
        if said.peer in each.silent:  # it lost its session in the middle of the round
            effects.append(opening.effect(each, (each.assignments[said.peer],), run.spec))
        effects += adding.asked_again(each, said.peer, run)
    return effects
