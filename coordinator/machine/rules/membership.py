"""The members of a run, their leases and their strikes.

                Joined                Ready
    (unknown) ----------> catching up --------> ready -----.
        ^                   |   ^                 |        | Joined (a new session), AskResync
        |      Left, Lapsed |   '-----------------'--------'
        '-------------------'---------------------'

Rules
- A member is a node that holds a lease; only `Left`, `Lapsed` and eviction end it. Any message
  renews the lease. A message from a node that is not a member changes nothing: no heartbeat revives
  a former member.
- A member whose session was lost keeps its lease and its place, but no round waits for it and none
  is opened on it until it is back. After a restart of the coordinator a member counts as connected
  until its lease runs out, unless it was away before (`LOST_TOGETHER_MS`).
- Strikes count late rounds; a punctual round forgives one. Each strike halves the share. At the
  run's limit the member is muted, which one punctual round ends. A member that has not announced
  yet stays below the limit for `FIRST_STEP_MS`: its first step may compile kernels.
"""

from coordinator.machine.events.effects import AskResync, Effect, Evict, TellMembers
from coordinator.machine.events.inputs import Disconnected, Heartbeat, Lapsed, Left, LinksMeasured
from coordinator.machine.rules import samples
from coordinator.machine.rules.judging import Judge
from coordinator.machine.state.run import Run
from protocol.ids import PeerId


def is_news(said: LinksMeasured | Disconnected | Left, run: Run) -> bool:
    """Whether a word of a node, or about it, changes anything: it is a member's, and new."""
    member = run.members.get(said.peer)
    if member is None:
        return False
    match said:
        case LinksMeasured(peer, links):
            return run.members.decides(peer) and member.work.links != links
        case Disconnected():
            return member.connected  # a second word of the same loss changes nothing
        case Left():
            return True


def take(
    event: Heartbeat | LinksMeasured | Disconnected | Left | Lapsed, run: Run, now_ms: int
) -> list[Effect]:
    """A member shows that it is alive, or went."""
    members, peer = run.members, event.peer
    match event:
        case Heartbeat():
            run.renew(peer, now_ms)
        case LinksMeasured():
            members.renew(peer, now_ms)
            if is_news(event, run):
                members.take_links(members.roster[peer], event.links)
        case Disconnected():
            if is_news(event, run):
                member = members.roster[peer]
                member.connected, member.lost_ms = False, now_ms
        case Left():
            gone = members.let_go(peer, now_ms)
            told: list[Effect] = [TellMembers(gone=(peer,))] if gone else []
            return told + forget(peer, run, now_ms)
        case Lapsed():
            reason = f"silent for {members.lease_ms / 1000:g} s"
            lapsed = members.lapse(peer, now_ms)
            told = [Evict(peer, reason), TellMembers(gone=(peer,))] if lapsed else []
            return told + forget(peer, run, now_ms)
    return []


def follow(verdicts: list[Effect], run: Run, now_ms: int) -> list[Effect]:
    """The verdicts on members, and what follows when they remove members or send them back to the
    log: their unfinished samples go back, and no round waits for them.
    """
    effects = verdicts
    for verdict in verdicts:
        if isinstance(verdict, Evict):
            effects = effects + forget(verdict.peer, run, now_ms)
        elif isinstance(verdict, AskResync):
            for undecided in run.state.undecided:
                samples.leave_out(undecided.withdraw(verdict.peer), run)
    return effects


def forget(peer: PeerId, run: Run, now_ms: int) -> list[Effect]:
    """Drop a member that went: it holds nothing, and its unannounced samples go back."""
    for undecided in run.state.undecided:
        samples.leave_out(undecided.forget(peer, now_ms), run)
    run.state.voids.forget(peer)
    return follow(Judge(run, now_ms).forget(peer), run, now_ms)
