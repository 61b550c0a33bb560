"""The fate of leased samples: each is in one payload that a commit counts, or goes back to the data
order and is leased again.

    leased --its member uses less, goes, or begins anew-----------> data order
      '--the round is decided--its payload counts--> trained --it becomes void--> data order
                              '--late, left out, or skipped--------> data order

Rules
- The books speak of the payloads that commits count. One that is left out is lost to its author
  too: nothing puts it back.
- Where nodes mix parameters, what an author trains is in its own parameters at once: announced
  samples are trained, whether the commit names their author or not, and those of which nothing was
  heard are lost, for their author may have them.
- Where the run goes on from a checkpoint, the samples that only commits behind it count are not
  trained again. Nobody knows here which these are; the entry of the chain is their record.
"""

from collections.abc import Iterable, Sequence

from coordinator.machine.events.inputs import Announced
from coordinator.machine.state.run import Run
from coordinator.machine.state.run_state import RunState
from coordinator.machine.state.undecided_round import UndecidedRound, used_part
from protocol.ids import Digest
from protocol.shuffle import Share


def settle(undecided: UndecidedRound, counted: Iterable[Announced], run: Run) -> None:
    """A round is decided, whose commit counts these payloads; none: it is skipped."""
    authors = {payload.peer for payload in counted}
    for peer, assignment in undecided.assignments.items():
        said = undecided.announced.get(peer)
        if said and (peer in authors or not run.spec.algorithm.facts.replicas_equal):
            run.state.totals.samples_trained += said.samples
        else:
            used = used_part(assignment.shares, said.samples) if said else assignment.shares
            leave_out(used, run)


def leave_out(shares: Sequence[Share], run: Run) -> None:
    """No payload counts these samples: they go back to the data order, or are lost."""
    totals, samples = run.state.totals, sum(share.count for share in shares)
    totals.samples_left_out += samples
    if run.spec.algorithm.facts.replicas_equal:
        _give_back(shares, run.state)
    else:
        totals.samples_lost += samples


def take_out(state: RunState, round: int, digest: Digest) -> None:
    """A committed payload becomes void: its samples go back to the data order."""
    shares = state.voids.trained(round, digest)
    state.totals.samples_void += sum(share.count for share in shares)
    _give_back(shares, state)


def _give_back(shares: Iterable[Share], state: RunState) -> None:
    for share in shares:
        state.order.give_back(share)
