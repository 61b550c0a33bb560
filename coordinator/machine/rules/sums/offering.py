"""Relays that offer to add come and go.

             SumsOffered                        OfferEnded
    (none) -------------> here: may be drawn ----------------> (none)
                           |  ^    a session lost, a goodbye, a lease without a word
                           '--' a new session of the same process

Rules
- A relay offers in its session. In a run that is open to the public only a relay that the operator
  has vouched for, or has named an auditor, is heard: a free key decides nothing.
- It is no member: it has no share, no vote and no receipt of payloads. A key that is a member adds
  as one.
- A relay that goes is gone from the rounds that are open, and others are asked in its place. So is
  one that comes as another process: what that holds is not known.
- The same process with a new session, as after a restart of the coordinator, is asked again what it
  has not answered.
"""

from coordinator.machine.events.effects import Effect
from coordinator.machine.events.inputs import OfferEnded, SumsOffered
from coordinator.machine.rules.sums import adding
from coordinator.machine.state.run import Run
from protocol.ids import PeerId


def is_news(said: SumsOffered | OfferEnded, run: Run) -> bool:
    """Whether the offer is one of a relay that may add, or the end of one that was heard."""
    if isinstance(said, OfferEnded):
        return run.relays.get(said.peer) is not None
    return run.may_add(said.peer) and run.relays.has_room(said.peer)


def take(said: SumsOffered | OfferEnded, run: Run, now_ms: int) -> list[Effect]:
    """A relay offers to add, or goes."""
    if not is_news(said, run):
        return []
    if isinstance(said, OfferEnded):
        end(said.peer, run, now_ms)
        return []
    known = run.relays.get(said.peer)
    if known and known.instance != said.instance:
        end(said.peer, run, now_ms)
    run.relays.put(said.peer, said.name, said.instance, now_ms + run.members.lease_ms)
    return [
        effect
        for undecided in run.state.undecided
        for effect in adding.asked_again(undecided, said.peer, run)
    ]


def end(peer: PeerId, run: Run, now_ms: int) -> None:
    """A relay adds no more, in no round that is open; does nothing for another node."""
    if run.relays.get(peer) is None:
        return
    run.relays.end(peer)
    for undecided in run.state.undecided:
        if undecided.sums:
            undecided.sums.forget(peer, now_ms)
